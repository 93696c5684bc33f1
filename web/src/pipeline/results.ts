/** Results of pipeline jobs, as `openq pipeline ... --publish` stores them: JSON of a program that may be newer or older. */

export const BUCKET = "openq-pipeline";

interface Percentiles {
  p50_us: number;
  p90_us: number;
  p99_us: number;
}

export interface QueueTotal {
  queue: string;
  published: number;
  acked: number;
  retried: number;
  dead_lettered: number;
  waiting: number;
  wait: Percentiles | null;
  processing: Percentiles | null;
}

/** Values of equal steps from the first time on. */
export interface Points {
  published: number[];
  acked: number[];
  retried: number[];
  dead_lettered: number[];
  wait_p50_us: (number | null)[];
  wait_p90_us: (number | null)[];
  wait_p99_us: (number | null)[];
  processing_p50_us: (number | null)[];
  processing_p90_us: (number | null)[];
  processing_p99_us: (number | null)[];
}

export interface Plots {
  from_us: number;
  step_us: number;
  queues: Record<string, Points>;
}

export interface Failure {
  queue: string;
  event: string;
  type: string | null;
  error_signature: string | null;
  count: number;
  last_seen: number;
}

/** Times are microseconds since the epoch. */
export interface Analytics {
  made: string;
  from: number;
  until: number;
  queues: QueueTotal[];
  plots: Plots | null;
  failures: Failure[];
}

export interface TriageGroup {
  source: string;
  dead_queue: string;
  type: string | null;
  signature: string | null;
  count: number;
  there: number;
  last_seen: string;
  timeline: number[];
  advice: string;
}

export interface Triage {
  made: string;
  total: number;
  groups_in_all: number;
  groups: TriageGroup[];
}

function read(text: string | undefined, lists: string[]): object | undefined {
  if (text === undefined) return undefined;
  try {
    const found = JSON.parse(text) as Record<string, unknown>;
    return typeof found.made === "string" && lists.every((name) => Array.isArray(found[name])) ? found : undefined;
  } catch {
    return undefined;
  }
}

/** undefined where there is none, or it is something else. */
export function readAnalytics(text: string | undefined): Analytics | undefined {
  return read(text, ["queues", "failures"]) as Analytics | undefined;
}

export function readTriage(text: string | undefined): Triage | undefined {
  return read(text, ["groups"]) as Triage | undefined;
}

/** Seconds since the epoch. */
export function timesOf({ from_us: from, step_us: step, queues }: Plots): number[] {
  const size = Math.max(0, ...Object.values(queues).map((points) => points.published.length));
  return Array.from({ length: size }, (_, index) => (from + index * step) / 1e6);
}

export interface HourCell {
  /** Local time: the first second of the day, and the hour. */
  day: number;
  hour: number;
  value: number;
}

/** Sums by day and hour in local time, the last days first. */
export function hoursOf(times: number[], values: number[], days = 14): HourCell[] {
  const cells = new Map<string, HourCell>();
  times.forEach((time, index) => {
    const date = new Date(time * 1000);
    const hour = date.getHours();
    const day = new Date(date.getFullYear(), date.getMonth(), date.getDate()).getTime() / 1000;
    const cell = cells.get(`${day} ${hour}`) ?? { day, hour, value: 0 };
    cell.value += values[index] ?? 0;
    cells.set(`${day} ${hour}`, cell);
  });
  const kept = [...new Set([...cells.values()].map((cell) => cell.day))].sort((a, b) => b - a).slice(0, days);
  return [...cells.values()].filter((cell) => kept.includes(cell.day)).sort((a, b) => b.day - a.day || a.hour - b.hour);
}
