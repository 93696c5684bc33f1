/** Settings of a queue as people write them: `30s`, `14d`, `forever`, `10 MiB`; and the difference before they are saved. */
import { SETTINGS, type QueueChange, type Settings, type SettingDescription } from "../api/schema";
import { cliLine } from "../api/lines";

export type Value = Settings[keyof Settings];
/** What stands in the fields of the form, by the name of the setting. */
export type Form = Record<string, string>;

export const GROUPS: { id: string; title: string; names: string[] }[] = [
  { id: "delivery", title: "Delivery", names: ["visibility_timeout", "delay", "retry", "paused", "fifo", "max_priority"] },
  { id: "dead-letters", title: "Dead letters", names: ["dlq", "max_receives", "exhausted", "dead_letter_expired", "dead_letter_exchange", "dead_letter_key"] },
  { id: "keeping", title: "Retention and size", names: ["retention", "message_ttl", "history", "max_length", "max_bytes", "max_body", "overflow", "relaxed"] },
  { id: "dedup", title: "Deduplication", names: ["dedup_window", "dedup_by_content", "dedup_per_group"] },
  { id: "limits", title: "Limits", names: ["concurrency", "rate", "key_concurrency", "key_rate", "key_limits"] },
];

const TIME_UNITS: [string, number][] = [
  ["d", 86_400],
  ["h", 3600],
  ["m", 60],
  ["s", 1],
];
const SIZE_UNITS: [string, number][] = [
  ["GiB", 1 << 30],
  ["MiB", 1 << 20],
  ["KiB", 1 << 10],
];
const RETRY_KINDS = ["default", "none", "fixed", "exponential"];

export function describe(name: string): SettingDescription {
  const found = SETTINGS.find((each) => each.name === name);
  if (!found) throw new Error(`unknown setting ${name}`);
  return found;
}

/** The groups with every setting of the server: one that this page does not know yet is in the last one. */
export function groups(): typeof GROUPS {
  const known = new Set(GROUPS.flatMap((group) => group.names));
  const rest = SETTINGS.map((each) => each.name).filter((name) => !known.has(name));
  const present = new Set(SETTINGS.map((each) => each.name));
  const shown = GROUPS.map((group) => ({ ...group, names: group.names.filter((name) => present.has(name)) }));
  return rest.length ? [...shown, { id: "other", title: "Other", names: rest }] : shown;
}

export function titleOf(name: string): string {
  const words = name.replaceAll("_", " ").replace(/\bdlq\b/, "dead-letter queue").replace(/\bttl\b/, "TTL").replace(/\bfifo\b/i, "FIFO");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** `90` is `90s`, `3600` is `1h`: the largest unit that gives a whole number. */
export function showTime(seconds: number): string {
  if (seconds === 0) return "0s";
  for (const [unit, size] of TIME_UNITS) if (seconds % size === 0) return `${seconds / size}${unit}`;
  return seconds < 1 ? `${Math.round(seconds * 1000)}ms` : `${seconds}s`;
}

export function showSize(bytes: number): string {
  for (const [unit, size] of SIZE_UNITS) if (bytes > 0 && bytes % size === 0) return `${bytes / size} ${unit}`;
  return String(bytes);
}

/** The text of a value in its field. Empty: no limit, no target, or the default. */
export function show(setting: SettingDescription, value: Value | undefined): string {
  if (value === null || value === undefined) return setting.endless ? "forever" : "";
  if (setting.kind === "duration") return showTime(value as number);
  if (setting.kind === "bytes") return showSize(value as number);
  // A policy without waits has nothing else to say.
  if (setting.kind === "retry" && (value as { kind?: string }).kind === "none") return "none";
  if (setting.kind === "key_limits") return showKeyLimits(value as KeyLimits);
  if (setting.kind === "retry") return JSON.stringify(value);
  return String(value);
}

/** What is sent for the text of a field. Raises an Error with a sentence. */
export function read(setting: SettingDescription, text: string): unknown {
  const trimmed = text.trim();
  if (setting.endless && /^(forever|none)?$/i.test(trimmed)) return null;
  if (trimmed === "") {
    if (setting.kind === "key_limits") return {};
    if (!setting.optional) throw new Error("A value is needed.");
    return null;
  }
  switch (setting.kind) {
    case "duration":
      return readTime(trimmed);
    case "bytes":
      return readSize(trimmed);
    case "count":
      return readCount(setting, trimmed);
    case "flag":
      return trimmed === "true";
    case "retry":
      if (RETRY_KINDS.includes(trimmed)) return trimmed;
      return readJson(trimmed, `one of ${RETRY_KINDS.join(", ")}, or a JSON object with kind, base, max, factor, jitter and on_expiry`);
    case "key_limits":
      return readKeyLimits(trimmed);
    case "choice":
      if (!setting.choices.includes(trimmed)) throw new Error(`One of ${setting.choices.join(", ")}.`);
      return trimmed;
    default:
      return trimmed;
  }
}

function readTime(text: string): number {
  const found = /^(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)?$/.exec(text);
  if (!found) throw new Error("A time such as 30, 500ms, 5m, 2h or 14d.");
  const unit = found[2] === "ms" ? 0.001 : found[2] === "min" ? 60 : (TIME_UNITS.find(([name]) => name === found[2])?.[1] ?? 1);
  return Number(found[1]) * unit;
}

function readSize(text: string): number {
  const found = /^(\d+(?:\.\d+)?)\s*(?:([KMG])(i?B)?|B)?$/i.exec(text);
  if (!found) throw new Error("A number of bytes, such as 1048576, 256 KiB or 10 MiB.");
  const power = found[2] ? " KMG".indexOf(found[2].toUpperCase()) : 0;
  return Math.round(Number(found[1]) * 1024 ** power);
}

function readCount(setting: SettingDescription, text: string): number {
  const value = Number(text.replaceAll(",", ""));
  if (!Number.isInteger(value)) throw new Error("A whole number.");
  if (value < setting.minimum) throw new Error(`At least ${setting.minimum}.`);
  if (setting.maximum !== null && value > setting.maximum) throw new Error(`At most ${setting.maximum.toLocaleString()}.`);
  return value;
}

type KeyLimits = Record<string, Record<string, unknown>>;

/** As the command line takes them: `tenant-17=concurrency:3,rate:100/m; tenant-18=rate:none`. JSON where that has no words. */
function showKeyLimits(limits: KeyLimits): string {
  const entries = Object.entries(limits).map(([key, parts]) => [key, Object.entries(parts)] as const);
  const isPlain = entries.every(([key, parts]) => !/[;"{]/.test(key) && key.trim() === key && parts.length > 0);
  if (!isPlain) return JSON.stringify(limits);
  return entries.map(([key, parts]) => `${key}=${parts.map(([name, value]) => `${name}:${value === null ? "none" : String(value)}`).join(",")}`).join("; ");
}

function readKeyLimits(text: string): KeyLimits {
  const wanted = "limits of keys such as tenant-17=concurrency:3,rate:100/m; tenant-18=rate:none, or a JSON object";
  if (text.startsWith("{")) return readJson(text, wanted) as KeyLimits;
  const limits: KeyLimits = {};
  for (const entry of text.split(";").map((each) => each.trim()).filter(Boolean)) {
    const at = entry.lastIndexOf("=");
    const own: Record<string, unknown> = {};
    for (const part of entry.slice(at + 1).split(",")) {
      const [, name, value] = /^\s*(concurrency|rate)\s*:\s*(.+?)\s*$/.exec(part) ?? [];
      if (at < 1 || !name || !value || (name === "concurrency" && !/^(\d+|none)$/i.test(value))) throw new Error(`It must be ${wanted}.`);
      own[name] = value.toLowerCase() === "none" ? null : name === "concurrency" ? Number(value) : value;
    }
    limits[entry.slice(0, at).trim()] = own;
  }
  return limits;
}

function readJson(text: string, wanted: string): unknown {
  try {
    const value = JSON.parse(text) as unknown;
    if (typeof value === "object" && value !== null && !Array.isArray(value)) return value;
  } catch {
    // Said below.
  }
  throw new Error(`It must be ${wanted}.`);
}

export function formOf(settings: Partial<Settings>): Form {
  return Object.fromEntries(SETTINGS.map((each) => [each.name, show(each, settings[each.name as keyof Settings])]));
}

export interface Difference {
  name: string;
  before: string;
  after: string;
  value: unknown;
}

/** What differs, with the values to send; and what cannot be read, by name. */
export function differences(before: Form, after: Form): { changes: Difference[]; problems: Record<string, string> } {
  const changes: Difference[] = [];
  const problems: Record<string, string> = {};
  for (const setting of SETTINGS) {
    const [old, now] = [before[setting.name] ?? "", after[setting.name] ?? ""];
    if (old.trim() === now.trim()) continue;
    try {
      const value = read(setting, now);
      const shown = setting.kind === "retry" && typeof value === "string" ? value : show(setting, value as Value);
      if (shown !== old) changes.push({ name: setting.name, before: old, after: shown, value });
    } catch (error) {
      problems[setting.name] = (error as Error).message;
    }
  }
  return { changes, problems };
}

export function changeOf(changes: Difference[]): QueueChange {
  return Object.fromEntries(changes.map((each) => [each.name, each.value])) as QueueChange;
}

/** The same change as a command; undefined where a setting has no option of the command line. */
export function settingsLine(verb: "create" | "edit", queue: string, changes: Difference[]): string | undefined {
  const words: string[] = [];
  for (const each of changes) {
    const setting = describe(each.name);
    const option = `--${each.name.replaceAll("_", "-")}`;
    if (!setting.flag) return undefined;
    if (setting.kind === "flag") words.push(each.value ? option : `--no-${each.name.replaceAll("_", "-")}`);
    else if (each.value === null && setting.endless) words.push(option, "forever");
    else if (each.value === null && each.name === "dlq") words.push("--no-dlq");
    // max_receives leaves together with the dead-letter queue.
    else if (each.value === null && each.name === "max_receives" && changes.some((other) => other.name === "dlq" && other.value === null)) continue;
    else if (each.value === null) return undefined;
    else if (setting.kind === "key_limits") {
      if (each.after === "") return undefined;
      words.push(option, each.after);
    }
    else if (setting.kind === "retry") {
      if (typeof each.value !== "string") return undefined;
      words.push(option, each.value);
    } else words.push(option, each.after.replace(" ", ""));
  }
  return cliLine("queue", verb, queue, ...words);
}
