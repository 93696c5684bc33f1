/** Calls of the REST API, typed by the server's own description. */
import { parseJson } from "./json";
import { OPERATIONS, type Operations, type ProblemDocument } from "./schema";

export type Operation = keyof Operations;
export type Params<O extends Operation> = Operations[O]["params"];
export type Body<O extends Operation> = Operations[O]["body"];
export type Result<O extends Operation> = Operations[O]["result"];

/** An error answer of the server, or a server that cannot be reached (status 0). */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly hint: string = "",
  ) {
    super(message);
  }
}

/** What a call sends: also what "copy as curl" shows. */
export interface Request {
  method: string;
  path: string;
  body?: unknown;
}

const SESSION_ENDED = new Set<() => void>();

/** `handler` runs when the server no longer accepts the session. */
export function onSessionEnd(handler: () => void): void {
  SESSION_ENDED.add(handler);
}

export function requestOf<O extends Operation>(operation: O, params: Params<O>, body?: Body<O>): Request {
  const [method, template] = OPERATIONS[operation];
  const query = new URLSearchParams();
  let path = template;
  for (const [name, value] of Object.entries(params as Record<string, unknown>)) {
    if (value === undefined || value === null || value === "") continue;
    const slot = `{${name}}`;
    if (path.includes(slot)) path = path.replace(slot, encodeURIComponent(String(value)));
    else query.set(name, String(value));
  }
  const text = query.toString();
  return { method, path: text ? `${path}?${text}` : path, body };
}

export async function send<T>(request: Request, signal?: AbortSignal): Promise<T> {
  // The header marks a call of this page: a form of another site cannot set it.
  const headers: Record<string, string> = { Accept: "application/json", "X-OpenQ-Request": "1" };
  if (request.body !== undefined) headers["Content-Type"] = "application/json";
  let response: Response;
  try {
    response = await fetch(request.path, {
      method: request.method,
      headers,
      body: request.body === undefined ? undefined : JSON.stringify(request.body),
      credentials: "same-origin",
      signal,
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Problem(0, "unreachable", "The server cannot be reached.", "The page tries again by itself.");
  }
  if (response.ok) {
    if (response.status === 204) return undefined as T;
    const text = await response.text();
    return (text ? parseJson(text) : undefined) as T;
  }
  throw await problemOf(response);
}

/** A response without an end. Its problems are those of `send`. */
export async function openStream(path: string, signal: AbortSignal): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, { headers: { Accept: "text/event-stream", "X-OpenQ-Request": "1" }, credentials: "same-origin", cache: "no-store", signal });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Problem(0, "unreachable", "The server cannot be reached.", "The page tries again by itself.");
  }
  if (response.ok) return response;
  throw await problemOf(response);
}

async function problemOf(response: Response): Promise<Problem> {
  let problem: Partial<ProblemDocument> = {};
  try {
    problem = (await response.json()) as ProblemDocument;
  } catch {
    // Not a problem document: a proxy answered, or the server is starting.
  }
  if (response.status === 401) for (const handler of SESSION_ENDED) handler();
  return new Problem(
    response.status,
    problem.code ?? String(response.status),
    problem.detail || problem.title || `HTTP ${response.status}`,
    problem.hint,
  );
}

export function call<O extends Operation>(
  operation: O,
  params: Params<O>,
  body?: Body<O>,
  signal?: AbortSignal,
): Promise<Result<O>> {
  return send<Result<O>>(requestOf(operation, params, body), signal);
}

/** The permission that an operation needs, as the server describes it. */
export function permissionOf(operation: Operation): string {
  return OPERATIONS[operation][2];
}
