/** The rows of queues, kept current from events that have only what changed. */
import type { LiveEvent, QueueRow as RowData, RowTotals } from "./api/schema";

export interface QueueRow {
  name: string;
  ready: number;
  delayed: number;
  inFlight: number;
  bytes: number;
  /** Seconds. */
  oldestAge: number | null;
  consumers: number;
  /** Ready messages that limits hold now. */
  limited: number;
  /** Messages per second, over the last seconds. */
  inRate: number;
  outRate: number;
  failRate: number;
  deadRate: number;
  dlq: string | null;
  paused: boolean;
  /** The newest rates of incoming messages, one a second, for the sparkline. */
  recent: readonly number[];
  /** How the number of ready messages changes. */
  growth: Growth | undefined;
}

export interface Growth {
  /** Messages that the backlog grew by, and in how many seconds. */
  by: number;
  seconds: number;
}

export interface Totals {
  ready: number;
  delayed: number;
  inFlight: number;
  inRate: number;
  outRate: number;
  failRate: number;
  deadRate: number;
  oldestAge: number | null;
}

export const NO_TOTALS: Totals = { ready: 0, delayed: 0, inFlight: 0, inRate: 0, outRate: 0, failRate: 0, deadRate: 0, oldestAge: null };

const KEPT = 60;
const DEPTH_STEP_MS = 10_000;
const DEPTHS = 13;
const SLOWLY_FROM = 1_000;
const TURNS = 5;

/** What all rows share: the time of the newest sample, and its number. */
interface Clock {
  now: number;
  tick: number;
}

type Depth = readonly [time: number, ready: number];

class Row implements QueueRow {
  readonly #data: RowData;
  readonly #clock: Clock;
  readonly #oldest: number | null;
  readonly #recent: readonly number[];
  readonly #tick: number;
  readonly #depths: readonly Depth[];

  constructor(data: RowData, before: Row | undefined, clock: Clock) {
    this.#data = data;
    this.#clock = clock;
    this.#oldest = data.oldest === null ? null : Date.parse(data.oldest);
    this.#tick = clock.tick;
    this.#recent = before ? [...before.until(clock.tick - 1), data.in_rate].slice(-KEPT) : [data.in_rate];
    const depths = before ? before.#depths : [];
    const last = depths.at(-1);
    this.#depths = last && clock.now - last[0] < DEPTH_STEP_MS ? depths : [...depths, [clock.now, data.ready] as const].slice(-DEPTHS);
  }

  get name() {
    return this.#data.name;
  }
  get ready() {
    return this.#data.ready;
  }
  get delayed() {
    return this.#data.delayed;
  }
  get inFlight() {
    return this.#data.in_flight;
  }
  get bytes() {
    return this.#data.bytes;
  }
  get consumers() {
    return this.#data.consumers;
  }
  get limited() {
    return this.#data.limited;
  }
  get inRate() {
    return this.#data.in_rate;
  }
  get outRate() {
    return this.#data.out_rate;
  }
  get failRate() {
    return this.#data.fail_rate;
  }
  get deadRate() {
    return this.#data.dead_rate;
  }
  get dlq() {
    return this.#data.dlq;
  }
  get paused() {
    return this.#data.paused;
  }
  get oldestAge() {
    return ageOf(this.#oldest, this.#clock.now);
  }
  get recent() {
    return this.until(this.#clock.tick);
  }

  /** A row that does not come again has the same rate as before. */
  until(tick: number): readonly number[] {
    const missing = Math.min(KEPT, tick - this.#tick);
    if (missing <= 0) return this.#recent;
    return [...this.#recent, ...Array<number>(missing).fill(this.#recent.at(-1) ?? 0)].slice(-KEPT);
  }

  get growth(): Growth | undefined {
    // A row that has not come for a while has not grown either.
    const known = this.#depths.filter(([time]) => this.#clock.now - time <= DEPTH_STEP_MS * DEPTHS);
    const first = known[0];
    if (!first) return undefined;
    return { by: this.ready - first[1], seconds: (this.#clock.now - first[0]) / 1000 };
  }
}

function ageOf(oldest: number | null, now: number): number | null {
  return oldest === null ? null : Math.max(0, (now - oldest) / 1000);
}

/**
 * The rows of one stream. They are handed out when a sample is complete; a new stream begins with all rows, so
 * queues that were deleted while there was no stream are gone with it.
 */
export class LiveRows {
  #rows: Map<string, Row>;
  readonly #before: ReadonlyMap<string, Row>;
  readonly #clock: Clock;
  #changed = true;

  /** `before`: those of the stream before, for their history. */
  constructor(before?: LiveRows) {
    this.#rows = new Map();
    this.#before = before ? before.#rows : new Map();
    this.#clock = before ? before.#clock : { now: 0, tick: 0 };
  }

  get now(): number {
    return this.#clock.now;
  }

  /** The rows to show now; undefined: more of the sample follow, or nothing has changed. */
  take(event: LiveEvent): ReadonlyMap<string, QueueRow> | undefined {
    const time = Date.parse(event.time);
    if (time !== this.#clock.now) {
      this.#clock.now = time;
      this.#clock.tick += 1;
    }
    for (const data of event.queues) {
      this.#rows.set(data.name, new Row(data, this.#rows.get(data.name) ?? this.#before.get(data.name), this.#clock));
    }
    for (const name of event.removed) this.#rows.delete(name);
    this.#changed ||= event.queues.length > 0 || event.removed.length > 0;
    if (!event.complete) return undefined;
    // Ages and sparklines move on without a change: of many rows not every second.
    if (!this.#changed && this.#rows.size > SLOWLY_FROM && this.#clock.tick % TURNS) return undefined;
    this.#changed = false;
    return new Map(this.#rows);
  }
}

export function totalsOf(totals: RowTotals, now: number): Totals {
  return {
    ready: totals.ready,
    delayed: totals.delayed,
    inFlight: totals.in_flight,
    inRate: totals.in_rate,
    outRate: totals.out_rate,
    failRate: totals.fail_rate,
    deadRate: totals.dead_rate,
    oldestAge: ageOf(totals.oldest === null ? null : Date.parse(totals.oldest), now),
  };
}
