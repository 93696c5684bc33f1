/**
 * Bodies as people read them. What a body is made of is found layer by layer: base64, gzip, then msgpack, JSON or text.
 *
 * Pickle is never read: reading one runs code of its writer.
 */
import { parseJson } from "../api/json";
import { decodeMsgpack } from "./msgpack";

export const DECODINGS = [
  ["auto", "Automatic"],
  ["json", "JSON"],
  ["text", "Text"],
  ["msgpack", "msgpack"],
  ["base64", "base64"],
  ["gzip", "gzip"],
  ["hex", "Hex"],
] as const;
export type Decoding = (typeof DECODINGS)[number][0];

export type Decoded =
  | { kind: "json"; value: unknown; layers: string[] }
  | { kind: "text"; text: string; layers: string[] }
  | { kind: "bytes"; bytes: Uint8Array; layers: string[] }
  | { kind: "failed"; problem: string; layers: string[] };

/** A body as the REST API shows it. */
export interface ShownBody {
  payload: unknown;
  payload_encoding?: string;
  payload_form?: string;
}

const MAX_UNPACKED = 16 << 20;
const MAX_LAYERS = 6;
const BASE64 = /^[A-Za-z0-9+/_-]+={0,2}$/;
const MIN_BASE64 = 16;

export function isDecoding(text: string | null): text is Decoding {
  return DECODINGS.some(([id]) => id === text);
}

export function fromBase64(text: string): Uint8Array {
  const plain = atob(text.replaceAll("-", "+").replaceAll("_", "/").replace(/\s+/g, ""));
  return Uint8Array.from(plain, (each) => each.charCodeAt(0));
}

export function toBase64(bytes: Uint8Array): string {
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
}

/** The bytes of a body. Of a JSON body: those of its value, written without spaces. */
export function bytesOf(body: ShownBody): Uint8Array {
  const { payload, payload_encoding: encoding } = body;
  if (encoding && encoding.includes("base64") && typeof payload === "string") return fromBase64(payload);
  return new TextEncoder().encode(typeof payload === "string" && body.payload_form !== "json" ? payload : JSON.stringify(payload));
}

export async function decode(body: ShownBody, how: Decoding): Promise<Decoded> {
  if (how === "auto" || how === "json") {
    // The API has parsed it already.
    if (!body.payload_encoding && (typeof body.payload !== "string" || body.payload_form === "json")) return { kind: "json", value: body.payload, layers: ["JSON"] };
  }
  const bytes = bytesOf(body);
  try {
    if (how === "auto") {
      const first = body.payload_encoding?.startsWith("msgpack") ? tryMsgpack(bytes, ["msgpack"]) : undefined;
      return first ?? (await guess(bytes, []));
    }
    return await decodeAs(bytes, how);
  } catch (error) {
    return { kind: "failed", problem: error instanceof Error ? error.message : String(error), layers: [] };
  }
}

async function decodeAs(bytes: Uint8Array, how: Exclude<Decoding, "auto">): Promise<Decoded> {
  switch (how) {
    case "hex":
      return { kind: "bytes", bytes, layers: [`${bytes.length.toLocaleString()} bytes`] };
    case "json":
      return { kind: "json", value: parseJson(new TextDecoder().decode(bytes)), layers: ["JSON"] };
    case "text":
      return { kind: "text", text: new TextDecoder().decode(bytes), layers: ["text"] };
    case "msgpack":
      return { kind: "json", value: decodeMsgpack(bytes), layers: ["msgpack"] };
    case "base64":
      return guess(fromBase64(new TextDecoder().decode(bytes)), ["base64"]);
    case "gzip":
      return guess(await gunzip(bytes), ["gzip"]);
  }
}

/** What the bytes look like. Base64 only if something sensible is inside: many words are valid base64. */
async function guess(bytes: Uint8Array, layers: string[]): Promise<Decoded> {
  if (layers.length < MAX_LAYERS && bytes[0] === 0x1f && bytes[1] === 0x8b) {
    try {
      return await guess(await gunzip(bytes), [...layers, "gzip"]);
    } catch {
      // It only begins like one.
    }
  }
  const text = utf8(bytes);
  if (text === undefined) return tryMsgpack(bytes, [...layers, "msgpack"]) ?? { kind: "bytes", bytes, layers: [...layers, "bytes"] };
  const json = tryJson(text);
  if (json !== undefined) return { kind: "json", value: json, layers: [...layers, "JSON"] };
  const trimmed = text.trim();
  if (layers.length < MAX_LAYERS && trimmed.length >= MIN_BASE64 && trimmed.length % 4 === 0 && BASE64.test(trimmed)) {
    try {
      const inner = await guess(fromBase64(trimmed), [...layers, "base64"]);
      if (inner.kind === "json" || inner.layers.includes("gzip")) return inner;
    } catch {
      // Text that only looks like base64.
    }
  }
  return { kind: "text", text, layers: [...layers, "text"] };
}

function tryMsgpack(bytes: Uint8Array, layers: string[]): Decoded | undefined {
  try {
    const value = decodeMsgpack(bytes);
    return typeof value === "object" && value !== null ? { kind: "json", value, layers } : undefined;
  } catch {
    return undefined;
  }
}

/** Only objects and lists: a number or a word is better shown as it is. */
function tryJson(text: string): unknown {
  if (!/^\s*[[{]/.test(text)) return undefined;
  try {
    return parseJson(text);
  } catch {
    return undefined;
  }
}

/** The text of valid UTF-8 without control characters that no text has; undefined for others. */
export function utf8(bytes: Uint8Array): string | undefined {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    // eslint-disable-next-line no-control-regex
    return /[\u0000-\u0008\u000e-\u001a\u001c-\u001f]/.test(text) ? undefined : text;
  } catch {
    return undefined;
  }
}

/** Unpacks gzip, up to a size: a small body can hold gigabytes. */
export async function gunzip(bytes: Uint8Array, limit = MAX_UNPACKED): Promise<Uint8Array> {
  const stream = new Blob([bytes as BlobPart]).stream().pipeThrough(new DecompressionStream("gzip"));
  const reader = stream.getReader();
  const parts: Uint8Array[] = [];
  let size = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    size += value.length;
    if (size > limit) {
      void reader.cancel();
      throw new Error(`It unpacks to more than ${limit >> 20} MiB.`);
    }
    parts.push(value);
  }
  const whole = new Uint8Array(size);
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** Lines as `hexdump -C` prints them. */
export function hexDump(bytes: Uint8Array, limit = 64 * 1024): string {
  const lines: string[] = [];
  for (let at = 0; at < Math.min(bytes.length, limit); at += 16) {
    const row = [...bytes.subarray(at, Math.min(at + 16, limit))];
    const digits = row.map((each) => each.toString(16).padStart(2, "0"));
    const left = digits.slice(0, 8).join(" ");
    const right = digits.slice(8).join(" ");
    const text = row.map((each) => (each >= 0x20 && each < 0x7f ? String.fromCharCode(each) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${left.padEnd(23)}  ${right.padEnd(23)}  |${text}|`);
  }
  return lines.join("\n");
}

/** One line of a body for a table. */
export function preview(body: ShownBody, limit = 240): string {
  const { payload, payload_encoding: encoding } = body;
  if (encoding && typeof payload === "string") {
    // Enough of it to know what it is; whole bodies are decoded in the detail.
    const bytes = fromBase64(payload.slice(0, 4 * limit - ((4 * limit) % 4)));
    const text = utf8(bytes);
    return text !== undefined ? text.slice(0, limit) : `${[...bytes.slice(0, 32)].map((each) => each.toString(16).padStart(2, "0")).join(" ")} …`;
  }
  const text = typeof payload === "string" ? payload : (JSON.stringify(payload) ?? "");
  return text.slice(0, limit);
}
