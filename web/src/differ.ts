/** What differs between samples: values by JSON path, side by side. */
import { digitsOf } from "./api/json";

export interface Difference {
  path: string;
  /** One text for each sample; undefined where it has no such value. */
  values: (string | undefined)[];
  isSame: boolean;
}

const MAX_PATHS = 200;
const MAX_DEPTH = 6;

/** The leaves of a value by path: {"a": [1]} gives a[0] = 1. */
export function leaves(value: unknown, path = "", depth = 0, into: Map<string, string> = new Map()): Map<string, string> {
  if (into.size >= MAX_PATHS) return into;
  if (value !== null && typeof value === "object" && digitsOf(value) === undefined && depth < MAX_DEPTH) {
    const entries = Array.isArray(value) ? value.map((each, index) => [`[${index}]`, each] as const) : Object.entries(value);
    if (entries.length === 0) into.set(path || "(body)", Array.isArray(value) ? "[]" : "{}");
    for (const [key, each] of entries) {
      const name = key.startsWith("[") && Array.isArray(value) ? path + key : path ? `${path}.${key}` : key;
      leaves(each, name, depth + 1, into);
    }
  } else into.set(path || "(body)", typeof value === "string" ? value : JSON.stringify(value));
  return into;
}

/** Rows for a table of samples: those that differ come first. */
export function differences(samples: unknown[]): Difference[] {
  const maps = samples.map((each) => leaves(each));
  const paths = new Set(maps.flatMap((each) => [...each.keys()]));
  const rows = [...paths].map((path) => {
    const values = maps.map((each) => each.get(path));
    return { path, values, isSame: values.every((value) => value === values[0]) };
  });
  return [...rows.filter((row) => !row.isSame), ...rows.filter((row) => row.isSame)];
}
