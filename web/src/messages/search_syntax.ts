/**
 * What people type into the search of messages, as the filter of the REST API.
 *
 *     refund                    text in the body; several words are one text, with the spaces between them
 *     "a:b c"                   quoted: text, whatever is in it
 *     colour:red  retries:=3    an attribute; `:=` takes a JSON value
 *     body.order.total=12       a value in a JSON body
 *     type:order  reason:timeout  id:ID  state:delayed
 *     age>10m  age<2h  deliveries>=3  deliveries<5
 */
import { parseJson } from "../api/json";
import type { MessageFilter } from "../api/schema";

export interface Parsed {
  filter: MessageFilter;
  /** What could not be understood, as sentences. */
  problems: string[];
}

const UNITS: Record<string, number> = { ms: 0.001, s: 1, m: 60, min: 60, h: 3600, d: 86_400 };
const STATES = ["all", "ready", "delayed", "in_flight"] as const;
const ATTRIBUTE = /^([^\s:"=<>]+):(=?)(.*)$/s;
const JSON_FIELD = /^body\.([^=<>]+)=(.*)$/s;
const COMPARISON = /^(age|deliveries)(>=|<=|>|<|=)(.*)$/s;

/** Seconds of `10m`, `1.5h`, `500ms` or `30`; undefined if it is none. */
export function seconds(text: string): number | undefined {
  const found = /^(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)?$/.exec(text.trim());
  return found ? Number(found[1]) * UNITS[found[2] ?? "s"]! : undefined;
}

interface Term {
  text: string;
  /** It began with a quote: text, whatever it looks like. */
  quoted: boolean;
}

/** Splits at spaces; quotes hold words together, and `\"` is a quote. */
export function terms(input: string): Term[] {
  const found: Term[] = [];
  const pattern = /(?:"(?:\\.|[^"\\])*"?|[^\s"])+/g;
  for (const [raw] of input.matchAll(pattern)) {
    const text = raw.replace(/"((?:\\.|[^"\\])*)"?/g, (_all, inner: string) => inner.replace(/\\(.)/g, "$1"));
    found.push({ text, quoted: raw.startsWith('"') });
  }
  return found;
}

export function parseSearch(input: string): Parsed {
  const filter: MessageFilter = {};
  const problems: string[] = [];
  const text: string[] = [];
  for (const term of terms(input)) {
    if (term.quoted) text.push(term.text);
    else if (!condition(term.text, filter, problems)) text.push(term.text);
  }
  if (text.length) filter.text = text.join(" ");
  return { filter, problems };
}

function condition(term: string, filter: MessageFilter, problems: string[]): boolean {
  const compared = COMPARISON.exec(term);
  if (compared) {
    compare(compared[1]!, compared[2]!, compared[3]!, filter, problems);
    return true;
  }
  const field = JSON_FIELD.exec(term);
  if (field) {
    filter.json = { ...filter.json, [field[1]!]: scalar(field[2]!) };
    return true;
  }
  const attribute = ATTRIBUTE.exec(term);
  // An address is text: https://…
  if (!attribute || attribute[3]!.startsWith("//")) return false;
  named(attribute[1]!, attribute[2] === "=", attribute[3]!, filter, problems);
  return true;
}

function compare(what: string, sign: string, value: string, filter: MessageFilter, problems: string[]): void {
  if (what === "age") {
    const age = seconds(value);
    if (age === undefined || sign === "=") problems.push(`age takes a time after > or <, such as age>10m, not ${what}${sign}${value}.`);
    else if (sign.startsWith(">")) filter.min_age = age;
    else filter.max_age = age;
    return;
  }
  const number = /^\d+$/.test(value) ? Number(value) : undefined;
  if (number === undefined) problems.push(`deliveries takes a whole number, such as deliveries>=3, not “${value}”.`);
  else if (sign === "=") filter.min_receives = filter.max_receives = number;
  else if (sign.startsWith(">")) filter.min_receives = sign === ">" ? number + 1 : number;
  else if (sign === "<" && number === 0) problems.push("deliveries<0 matches nothing.");
  else filter.max_receives = sign === "<" ? number - 1 : number;
}

function named(name: string, isJson: boolean, value: string, filter: MessageFilter, problems: string[]): void {
  if (isJson) {
    try {
      filter.attributes = { ...filter.attributes, [name]: parseJson(value) };
    } catch {
      problems.push(`${name}:= takes a JSON value, such as ${name}:=5, not “${value}”.`);
    }
  } else if (value === "") problems.push(`${name}: has no value.`);
  else if (name === "type") filter.message_type = value;
  else if (name === "reason") filter.reason = value;
  else if (name === "id") filter.ids = [...(filter.ids ?? []), value];
  else if (name === "state") {
    const state = STATES.find((each) => each === value.replace("-", "_"));
    if (state) filter.state = state;
    else problems.push(`state is ready, delayed, in_flight or all, not “${value}”.`);
  } else filter.attributes = { ...filter.attributes, [name]: value };
}

/** A number, true, false, null or quoted text; everything else is text. */
function scalar(text: string): unknown {
  try {
    return parseJson(text);
  } catch {
    return text;
  }
}

/** The options of `openq search` for a filter. */
export function searchOptions(filter: MessageFilter): string[] {
  const options: string[] = [];
  const add = (name: string, value: string | number | null | undefined) => {
    if (value !== undefined && value !== null) options.push(name, String(value));
  };
  add("--type", filter.message_type);
  add("--reason", filter.reason);
  for (const id of filter.ids ?? []) add("--id", id);
  for (const [name, value] of Object.entries(filter.attributes ?? {})) {
    add("--attribute", typeof value === "string" ? `${name}=${value}` : `${name}:=${JSON.stringify(value)}`);
  }
  for (const [path, value] of Object.entries(filter.json ?? {})) add("--where", `${path}=${typeof value === "string" ? value : JSON.stringify(value)}`);
  add("--min-age", filter.min_age);
  add("--max-age", filter.max_age);
  add("--min-receives", filter.min_receives);
  add("--max-receives", filter.max_receives);
  if (filter.state && filter.state !== "all") add("--state", filter.state);
  return options;
}
