/** Changes of JSON bodies as they are typed: path=value on each line, and paths to remove. */
import { parseJson } from "../api/json";

export interface Changes {
  set: Record<string, unknown>;
  remove: string[];
  /** The first line that cannot be read. */
  problem?: string;
}

/** A value is JSON where it can be read as such (a number, true, null, quoted text), otherwise text. */
export function readChanges(set: string, remove: string): Changes {
  const result: Changes = { set: {}, remove: lines(remove) };
  for (const line of lines(set)) {
    const at = line.indexOf("=");
    if (at <= 0) {
      result.problem ??= `“${line}” is not path=value.`;
      continue;
    }
    result.set[line.slice(0, at).trim()] = valueOf(line.slice(at + 1).trim());
  }
  return result;
}

function lines(text: string): string[] {
  return text.split("\n").map((line) => line.trim()).filter(Boolean);
}

function valueOf(text: string): unknown {
  try {
    return parseJson(text);
  } catch {
    return text;
  }
}
