/**
 * What changes by itself: the queues with their counts and rates, and the totals.
 *
 * One stream for the whole page. It ends in a hidden tab, because a browser has few connections to one server,
 * and begins again when the tab is seen, or the server is back.
 */
import { computed, signal } from "@preact/signals";

import { Problem, requestOf } from "./api/client";
import { backOff, readEvents } from "./api/event_stream";
import type { LiveEvent } from "./api/schema";
import { LiveRows, NO_TOTALS, totalsOf, type QueueRow, type Totals } from "./live_rows";

export type { QueueRow, Totals } from "./live_rows";

export type FeedState =
  | { is: "starting" }
  | { is: "live" }
  /** The stream is open and brings nothing: the server is busy, or its store does not answer. */
  | { is: "silent"; since: number }
  | { is: "lost"; problem: Problem; next: number };

export const queues = signal<ReadonlyMap<string, QueueRow>>(new Map());
export const totals = signal<Totals>(NO_TOTALS);
export const feed = signal<FeedState>({ is: "starting" });
/** undefined until the first answer. */
export const connected = computed(() => (feed.value.is === "starting" ? undefined : feed.value.is !== "lost"));
/** Counts how often the stream came back: what could not be loaded meanwhile is loaded again. */
export const returns = signal(0);

const SILENT_MS = 6_000;
const DEAD_MS = 30_000;
const HIDDEN_MS = 3_000;

let rows = new LiveRows();
let running: AbortController | undefined;
let stream: AbortController | undefined;
let failures = 0;
let heardAt = 0;
let retryTimer: number | undefined;
let watchTimer: number | undefined;
let hiddenTimer: number | undefined;

export function startLive(): void {
  stopLive();
  running = new AbortController();
  const { signal } = running;
  addEventListener("visibilitychange", onVisibility, { signal });
  addEventListener("online", retryNow, { signal });
  watchTimer = setInterval(watch, 1000);
  failures = 0;
  if (!document.hidden) void follow();
}

export function stopLive(): void {
  running?.abort();
  running = undefined;
  clearInterval(watchTimer);
  clearTimeout(hiddenTimer);
  pause();
  // Another user may see other queues.
  rows = new LiveRows();
  queues.value = new Map();
  totals.value = NO_TOTALS;
  feed.value = { is: "starting" };
}

/** Without waiting for the end of the back-off. */
export function retryNow(): void {
  if (!running || stream) return;
  clearTimeout(retryTimer);
  void follow();
}

function pause(): void {
  clearTimeout(retryTimer);
  stream?.abort();
  stream = undefined;
}

function onVisibility(): void {
  clearTimeout(hiddenTimer);
  if (document.hidden) hiddenTimer = setTimeout(pause, HIDDEN_MS);
  else retryNow();
}

async function follow(): Promise<void> {
  const own = new AbortController();
  stream = own;
  heardAt = Date.now();
  rows = new LiveRows(rows);
  let problem = new Problem(0, "unreachable", "The server cannot be reached.");
  try {
    await readEvents(
      requestOf("follow_live", {}).path,
      own.signal,
      (event) => event.event === "queues" && take(JSON.parse(event.data) as LiveEvent),
      () => (heardAt = Date.now()),
    );
  } catch (error) {
    if (error instanceof Problem) problem = error;
  }
  // Another stream has begun, or none is wanted.
  if (stream !== own) return;
  stream = undefined;
  if (!running || problem.status === 401) return;
  failures += 1;
  const wait = backOff(failures);
  feed.value = { is: "lost", problem, next: Date.now() + wait };
  retryTimer = setTimeout(() => void follow(), wait);
}

function take(event: LiveEvent): void {
  const shown = rows.take(event);
  totals.value = totalsOf(event.totals, rows.now);
  if (shown) queues.value = shown;
  if (!event.complete) return;
  const was = feed.value.is;
  failures = 0;
  if (was !== "live") feed.value = { is: "live" };
  if (was === "lost") returns.value += 1;
}

/** A connection that ended without a word is noticed by its silence. */
function watch(): void {
  if (!stream || document.hidden) return;
  const silent = Date.now() - heardAt;
  if (silent > DEAD_MS) {
    const old = stream;
    stream = undefined;
    old.abort();
    void follow();
  } else if (silent > SILENT_MS && feed.value.is === "live") feed.value = { is: "silent", since: heardAt };
}
