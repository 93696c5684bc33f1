import { expect, test } from "vitest";

import type { LiveEvent, QueueRow as RowData } from "./api/schema";
import { LiveRows } from "./live_rows";

const START = Date.parse("2026-01-01T00:00:00Z");

function row(name: string, change: Partial<RowData> = {}): RowData {
  return { name, ready: 0, delayed: 0, in_flight: 0, bytes: 0, oldest: null, consumers: 0, limited: 0, in_rate: 0, out_rate: 0, fail_rate: 0, dead_rate: 0, dlq: null, paused: false, ...change };
}

function event(second: number, queues: RowData[], more: Partial<LiveEvent> = {}): LiveEvent {
  const totals = { queues: 0, ready: 0, delayed: 0, in_flight: 0, bytes: 0, oldest: null, in_rate: 0, out_rate: 0, fail_rate: 0, dead_rate: 0 };
  return { time: new Date(START + second * 1000).toISOString(), totals, queues, removed: [], complete: true, ...more };
}

test("rows are shown when their sample is complete", () => {
  const rows = new LiveRows();

  expect(rows.take(event(0, [row("a")], { complete: false }))).toBeUndefined();
  const shown = rows.take(event(0, [row("b")]));

  expect([...shown!.keys()]).toEqual(["a", "b"]);
});

test("an event has only what changed, and what was removed", () => {
  const rows = new LiveRows();
  rows.take(event(0, [row("a", { ready: 1 }), row("b", { ready: 2 }), row("c")]));

  const shown = rows.take(event(1, [row("b", { ready: 3 })], { removed: ["c"] }))!;

  expect([...shown.values()].map((each) => [each.name, each.ready])).toEqual([
    ["a", 1],
    ["b", 3],
  ]);
});

test("ages grow with the samples, also of rows that do not come", () => {
  const rows = new LiveRows();
  rows.take(event(0, [row("a", { ready: 1, oldest: new Date(START - 5000).toISOString() })]));

  const shown = rows.take(event(7, []))!;

  expect(shown.get("a")!.oldestAge).toBe(12);
});

test("the sparkline has one rate for each sample, the last of a row that does not come", () => {
  const rows = new LiveRows();
  rows.take(event(0, [row("a", { in_rate: 1 }), row("b")]));
  rows.take(event(1, []));
  rows.take(event(2, [row("a", { in_rate: 5 })]));

  const shown = rows.take(event(3, []))!;

  expect(shown.get("a")!.recent).toEqual([1, 1, 5, 5]);
  for (let second = 4; second < 100; second += 1) rows.take(event(second, []));
  expect(shown.get("a")!.recent.length).toBe(60);
});

test("a new stream forgets queues that are gone, and keeps the past of the others", () => {
  const first = new LiveRows();
  first.take(event(0, [row("a", { in_rate: 1 }), row("gone")]));
  const second = new LiveRows(first);

  const shown = second.take(event(1, [row("a", { in_rate: 2 })]))!;

  expect([...shown.keys()]).toEqual(["a"]);
  expect(shown.get("a")!.recent).toEqual([1, 2]);
});

test("of many rows, samples without a change are not shown every time", () => {
  const rows = new LiveRows();
  rows.take(event(0, Array.from({ length: 2000 }, (_, number) => row(`q${number}`))));

  const shown = [1, 2, 3, 4, 5, 6].map((second) => rows.take(event(second, [])) !== undefined);

  expect(shown.filter(Boolean).length).toBe(1);
});

test("growth is counted over the last two minutes", () => {
  const rows = new LiveRows();
  rows.take(event(0, [row("a", { ready: 100 })]));
  for (let second = 10; second <= 60; second += 10) rows.take(event(second, [row("a", { ready: 100 + second })]));

  const shown = rows.take(event(60, []))!;

  expect(shown.get("a")!.growth).toEqual({ by: 60, seconds: 60 });
});
