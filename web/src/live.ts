/**
 * What changes by itself: the queues with their counts and rates, and the totals.
 *
 * One feed for the whole page. It stops in a hidden tab and starts again by itself when the server comes back.
 */
import { computed, signal } from "@preact/signals";

import { call } from "./api/client";
import type { QueueView } from "./api/schema";

export interface QueueRow {
  name: string;
  ready: number;
  delayed: number;
  inFlight: number;
  oldestAge: number | null;
  consumers: number;
  /** Messages per second, over the last seconds. */
  inRate: number;
  outRate: number;
  failRate: number;
  dlq: string | null;
  paused: boolean;
  /** The newest rates of incoming messages, for the sparkline. */
  recent: readonly number[];
}

export const queues = signal<ReadonlyMap<string, QueueRow>>(new Map());
/** undefined until the first answer. */
export const connected = signal<boolean | undefined>(undefined);

export interface Totals {
  ready: number;
  delayed: number;
  inFlight: number;
  inRate: number;
  outRate: number;
  failRate: number;
  oldestAge: number | null;
}

export const totals = computed<Totals>(() => {
  const sum: Totals = { ready: 0, delayed: 0, inFlight: 0, inRate: 0, outRate: 0, failRate: 0, oldestAge: null };
  for (const row of queues.value.values()) {
    sum.ready += row.ready;
    sum.delayed += row.delayed;
    sum.inFlight += row.inFlight;
    sum.inRate += row.inRate;
    sum.outRate += row.outRate;
    sum.failRate += row.failRate;
    if (row.oldestAge !== null) sum.oldestAge = Math.max(sum.oldestAge ?? 0, row.oldestAge);
  }
  return sum;
});

const KEPT = 60;
let before: { at: number; counters: Map<string, Record<string, number>> } | undefined;

function rowOf(view: QueueView, seconds: number | undefined): QueueRow {
  const old = queues.value.get(view.name);
  const counters = view.stats.counters;
  const last = before?.counters.get(view.name);
  const rate = (name: string) => (last && seconds ? Math.max(0, ((counters[name] ?? 0) - (last[name] ?? 0)) / seconds) : 0);
  const inRate = rate("published");
  return {
    name: view.name,
    ready: view.stats.ready,
    delayed: view.stats.delayed,
    inFlight: view.stats.in_flight,
    oldestAge: view.stats.oldest_age,
    consumers: view.stats.waiters,
    inRate,
    outRate: rate("acked"),
    failRate: rate("dead_lettered") + rate("nacked"),
    dlq: view.settings.dlq,
    paused: view.settings.paused,
    recent: [...(old?.recent ?? []), inRate].slice(-KEPT),
  };
}

async function look(): Promise<void> {
  const views: QueueView[] = [];
  let after: string | undefined;
  do {
    const page = await call("list_queues", { limit: 1000, after });
    views.push(...page.queues);
    after = page.next;
  } while (after && views.length < 20_000);
  const now = performance.now();
  const seconds = before && (now - before.at) / 1000;
  const rows = new Map(views.map((view) => [view.name, rowOf(view, seconds)]));
  before = { at: now, counters: new Map(views.map((view) => [view.name, view.stats.counters])) };
  queues.value = rows;
  connected.value = true;
}

let timer: number | undefined;

export function startLive(): void {
  stopLive();
  const turn = async () => {
    if (!document.hidden) {
      try {
        await look();
      } catch {
        connected.value = false;
      }
    }
    timer = setTimeout(turn, 1000);
  };
  void turn();
}

export function stopLive(): void {
  clearTimeout(timer);
}
