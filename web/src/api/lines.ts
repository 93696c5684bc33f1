/** The same action as a line for a shell: what "Copy as" offers. */
import type { Request } from "./client";

/** Quotes a word for a POSIX shell. */
export function quote(word: string): string {
  // Pasted as they are, control characters would be keys for the terminal: Ctrl-C, Escape, Enter.
  if (/[\u0000-\u001f\u007f]/.test(word)) {
    // eslint-disable-next-line no-control-regex
    return `$'${word.replace(/[\\']/g, "\\$&").replace(/[\u0000-\u001f\u007f]/g, (each) => `\\x${each.charCodeAt(0).toString(16).padStart(2, "0")}`)}'`;
  }
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

/** Where `openq` looks by itself. */
const DEFAULT_ORIGINS = ["http://127.0.0.1:9324", "http://localhost:9324"];
/** Commands that read files: on the machine of the server, without its address. */
const LOCAL = ["user", "key", "token", "perm", "config show"];
let withToken = false;

/** Whether lines need credentials: the server has users. They name the variable, never a secret. */
export function setNeedsToken(needs: boolean): void {
  withToken = needs;
}

export function curlLine(request: Request, origin: string = location.origin): string {
  const words = ["curl"];
  if (withToken) words.push("-H", '"Authorization: Bearer $OPENQ_TOKEN"');
  if (request.method !== "GET" && !(request.method === "POST" && request.body !== undefined)) {
    words.push("-X", request.method);
  }
  words.push(quote(origin + request.path));
  if (request.body !== undefined) words.push("--json", quote(JSON.stringify(request.body)));
  return words.join(" ");
}

/** `openq` with its words quoted, and the address of this server; empty, undefined and false words are left out. */
export function cliLine(...words: (string | number | false | undefined | null)[]): string {
  const given = words.filter((word) => word !== false && word !== undefined && word !== null && word !== "");
  const origin = typeof location === "undefined" ? DEFAULT_ORIGINS[0]! : location.origin;
  const isLocal = LOCAL.some((name) => name === given[0] || name === `${given[0]} ${given[1]}`);
  if (!DEFAULT_ORIGINS.includes(origin) && !isLocal && !given.includes("--url")) given.push("--url", origin);
  return ["openq", ...given.map((word) => quote(String(word)))].join(" ");
}
