/** The send form as a message for the REST API. */
import type { NewMessage } from "../api/schema";
import { parseJson } from "../api/json";
import { cliLine, flag, repeated, withBody, type Flag } from "../api/lines";
import { seconds } from "./search_syntax";

export const KINDS = [
  ["text", "Text"],
  ["json", "JSON"],
  ["base64", "base64"],
] as const;
export type Kind = (typeof KINDS)[number][0];

export interface SendForm {
  kind: Kind;
  body: string;
  attributes: [string, string][];
  type: string;
  delay: string;
  ttl: string;
  group: string;
  dedup: string;
  priority: string;
  times: string;
}

export const EMPTY: SendForm = { kind: "text", body: "", attributes: [], type: "", delay: "", ttl: "", group: "", dedup: "", priority: "", times: "1" };
export const MAX_TIMES = 100_000;

/** The message, and what is wrong, by the name of the field. */
export function draftOf(form: SendForm): { message: NewMessage; times: number; problems: Record<string, string> } {
  const problems: Record<string, string> = {};
  const message: NewMessage = {};
  if (form.kind === "json") {
    try {
      message.payload = parseJson(form.body);
      // A text that is JSON by itself would be stored as text.
      if (typeof message.payload === "string") message.payload_encoding = "json";
    } catch (error) {
      problems.body = `Not JSON: ${(error as Error).message}`;
    }
  } else {
    message.payload = form.body;
    if (form.kind === "base64") {
      message.payload_encoding = "base64";
      if (!/^[A-Za-z0-9+/\s]*={0,2}\s*$/.test(form.body)) problems.body = "Not base64.";
    }
  }
  const attributes: Record<string, unknown> = {};
  for (const [name, value] of form.attributes) {
    if (name.trim() === "") {
      if (value !== "") problems.attributes = "An attribute needs a name.";
    } else if (name in attributes) problems.attributes = `Attribute ${name} is there twice.`;
    else attributes[name] = value;
  }
  if (Object.keys(attributes).length) message.attributes = attributes;
  for (const [field, target] of [
    ["delay", "delay"],
    ["ttl", "ttl"],
  ] as const) {
    if (form[field].trim() === "") continue;
    const value = seconds(form[field]);
    if (value === undefined) problems[field] = "A time such as 30, 5m or 2h.";
    else message[target] = value;
  }
  if (form.type) message.message_type = form.type;
  if (form.group) message.group = form.group;
  if (form.dedup) message.dedup_id = form.dedup;
  if (form.priority.trim() !== "") {
    const value = Number(form.priority);
    if (!Number.isInteger(value) || value < 0 || value > 255) problems.priority = "A whole number from 0 to 255.";
    else message.priority = value;
  }
  const times = Number(form.times || "1");
  if (!Number.isInteger(times) || times < 1 || times > MAX_TIMES) problems.times = `A whole number from 1 to ${MAX_TIMES.toLocaleString()}.`;
  else if (times > 1 && form.dedup) problems.times = "With a deduplication id only the first one would be kept.";
  return { message, times, problems };
}

/** `lines`: each of them is a message, read from a file. */
export function sendLine(queue: string, form: SendForm, lines?: boolean): string {
  const options: Flag[] = [];
  const add = (name: string, value: string) => {
    if (value.trim()) options.push(flag(name, value));
  };
  if (form.kind !== "text") add("--as", form.kind);
  add("--type", form.type);
  // In seconds: the form takes more words for units than the command.
  add("--delay", String(seconds(form.delay) ?? form.delay));
  add("--ttl", String(seconds(form.ttl) ?? form.ttl));
  add("--group", form.group);
  add("--dedup-id", form.dedup);
  add("--priority", form.priority);
  for (const [name, value] of form.attributes) if (name) options.push(flag("--attribute", `${name}=${value}`));
  if (lines) return `${cliLine("send", queue, "--lines", ...options)} < FILE`;
  let line = cliLine("send", queue, form.body, ...options);
  if (form.body === "") line = `${line} ''`;
  // After "--" no word is an option.
  else if (form.body.startsWith("-")) line = cliLine("send", ...options, queue, "--", form.body);
  return repeated(withBody(line, form.body), Number(form.times || "1"));
}
