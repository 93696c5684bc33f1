/** The same action as a line for a shell: what "Copy as" offers. */
import type { Request } from "./client";

/** Quotes a word for a POSIX shell. */
export function quote(word: string): string {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

export function curlLine(request: Request, origin: string = location.origin): string {
  const words = ["curl"];
  if (request.method !== "GET" && !(request.method === "POST" && request.body !== undefined)) {
    words.push("-X", request.method);
  }
  words.push(quote(origin + request.path));
  if (request.body !== undefined) words.push("--json", quote(JSON.stringify(request.body)));
  return words.join(" ");
}

/** `openq` with its words quoted; empty, undefined and false words are left out. */
export function cliLine(...words: (string | number | false | undefined | null)[]): string {
  const given = words.filter((word) => word !== false && word !== undefined && word !== null && word !== "");
  return ["openq", ...given.map((word) => quote(String(word)))].join(" ");
}
