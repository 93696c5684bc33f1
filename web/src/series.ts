/** The built-in history of counts, as charts want it. */
import { call } from "./api/client";
import type { SeriesView } from "./api/schema";
import { isAdmin } from "./session";

export const RANGES = [
  ["5m", "5 min"],
  ["1h", "1 h"],
  ["24h", "24 h"],
  ["30d", "30 d"],
] as const;
export type Range = (typeof RANGES)[number][0];

const SECONDS: Record<Range, number> = { "5m": 300, "1h": 3600, "24h": 86_400, "30d": 2_592_000 };
const STEPS: Record<Range, number> = { "5m": 2, "1h": 20, "24h": 300, "30d": 7200 };

export function secondsOf(range: Range): number {
  return SECONDS[range];
}

/** How often a chart of this range is worth loading again, in seconds. */
export function refreshOf(range: Range): number {
  return range === "5m" ? 2 : range === "1h" ? 10 : 60;
}

export function isRange(text: string | null): text is Range {
  return RANGES.some(([id]) => id === text);
}

/** `queue` undefined: all queues together; of those that the user may see where it may not see all. */
export async function loadSeries(range: Range, queue: string | undefined, names: string[], signal?: AbortSignal): Promise<SeriesView> {
  const from = new Date(Date.now() - SECONDS[range] * 1000).toISOString();
  const visible = queue === undefined && !isAdmin() ? true : undefined;
  return finished(await call("show_series", { queue, visible, name: names.join(","), from, step: STEPS[range] }, undefined, signal));
}

/** Without a last step that still goes on: what was counted in a part of it looks like a fall. */
export function finished(series: SeriesView, now = Date.now() / 1000): SeriesView {
  const last = series.times.at(-1);
  if (last === undefined || series.times.length < 3 || last + series.step <= now) return series;
  const values = Object.fromEntries(Object.entries(series.values).map(([name, column]) => [name, column.slice(0, -1)]));
  return { ...series, times: series.times.slice(0, -1), values };
}

/** Values per second: sums are divided by the step, the others stay as they are. */
export function perSecond(series: SeriesView, name: string): (number | null)[] {
  const values = series.values[name] ?? [];
  if (!series.sums.includes(name)) return values;
  return values.map((value) => (value === null ? null : value / series.step));
}

/** Sums of several names, value by value. */
export function added(...columns: (number | null)[][]): (number | null)[] {
  const [first = [], ...rest] = columns;
  return first.map((value, index) =>
    rest.reduce<number | null>((sum, column) => {
      const other = column[index] ?? null;
      return sum === null ? other : other === null ? sum : sum + other;
    }, value),
  );
}
