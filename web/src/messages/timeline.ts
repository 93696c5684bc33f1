/** The life of a message as spans of time: where it waited, who had it, where it lay as a dead letter. */
import type { TimelineStepView } from "../api/schema";

export type SpanKind = "waiting" | "delayed" | "leased" | "dead";

export interface Span {
  kind: SpanKind;
  queue: string;
  /** Milliseconds since the epoch. */
  from: number;
  to: number;
  /** It still lasts. */
  open: boolean;
}

export const SPAN_WORDS: Record<SpanKind, string> = {
  waiting: "waiting",
  delayed: "delayed",
  leased: "in flight",
  dead: "dead letter",
};

export type Tone = "good" | "bad" | "warn" | "accent" | undefined;

/** How a step is marked, besides its word. */
export function toneOf(what: string): Tone {
  if (what === "acked") return "good";
  if (what === "nacked" || what === "lease expired" || what === "dead-lettered") return "bad";
  if (what === "removed" || what === "purged") return "warn";
  if (what === "delivered") return "accent";
  return undefined;
}

const ENDS = new Set(["acked", "removed", "purged"]);
const AGAIN = /(?:again at|^to) (\d{4}-\d\d-\d\dT[\d:.]+Z)/;

/** The queue after `to` in the detail of a move. */
export function targetOf(detail: string): string {
  return /^to (.+?)(?: \(|$)/s.exec(detail)?.[1] ?? "";
}

/** `now` closes the last span of a message that is still in a queue. */
export function spansOf(steps: TimelineStepView[], now: number): Span[] {
  const spans: Span[] = [];
  let kind: SpanKind | undefined;
  let queue = "";
  let from = 0;
  let due = 0;
  const close = (to: number, open = false) => {
    if (!kind) return;
    if (kind === "delayed" && due > from && due < to) {
      spans.push({ kind, queue, from, to: due, open: false }, { kind: "waiting", queue, from: due, to, open });
    } else spans.push({ kind, queue, from, to: Math.max(from, to), open });
  };
  for (const step of steps) {
    const at = Date.parse(step.time);
    if (step.what === "extended" || step.what === "edited" || step.what === "changed") continue;
    // A message that is moved into several queues lives on in each; the line follows the last step.
    close(at);
    from = at;
    queue = step.queue;
    due = Date.parse(AGAIN.exec(step.detail)?.[1] ?? "") || 0;
    kind = nextKind(step.what, due > at);
    if (step.what === "dead-lettered" || step.what === "moved" || step.what === "redriven") queue = targetOf(step.detail) || step.queue;
  }
  close(Math.max(now, from), true);
  return spans;
}

function nextKind(what: string, isDelayed: boolean): SpanKind | undefined {
  if (ENDS.has(what)) return undefined;
  if (what === "delivered") return "leased";
  if (what === "dead-lettered") return "dead";
  return isDelayed ? "delayed" : "waiting";
}

/** How long each kind took altogether, in milliseconds. */
export function totalsOf(spans: Span[]): [SpanKind, number][] {
  const sums = new Map<SpanKind, number>();
  for (const span of spans) sums.set(span.kind, (sums.get(span.kind) ?? 0) + span.to - span.from);
  return [...sums];
}

/** Round times for the axis: at most `most` of them. */
export function ticksOf(from: number, to: number, most = 6): number[] {
  const length = Math.max(1, to - from);
  const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000, 3_600_000, 7_200_000, 21_600_000, 43_200_000];
  const step = steps.find((each) => length / each <= most) ?? Math.ceil(length / most / 86_400_000) * 86_400_000;
  const ticks: number[] = [];
  for (let at = 0; at <= length; at += step) ticks.push(at);
  return ticks;
}
