import { expect, it } from "vitest";

import { spansOf, targetOf, ticksOf, toneOf, totalsOf } from "./timeline";

const T0 = Date.parse("2026-01-01T12:00:00Z");
const step = (seconds: number, what: string, detail = "", queue = "orders") => ({ time: new Date(T0 + seconds * 1000).toISOString(), what, queue, detail });

it("follows a message from its publish to its ack", () => {
  const spans = spansOf([step(0, "published"), step(2, "delivered", "to w1, leased until x"), step(5, "acked")], T0 + 99_000);
  expect(spans.map((each) => [each.kind, (each.from - T0) / 1000, (each.to - T0) / 1000, each.open])).toEqual([
    ["waiting", 0, 2, false],
    ["leased", 2, 5, false],
  ]);
});

it("splits the pause before a retry from the wait after it", () => {
  const again = new Date(T0 + 4000).toISOString();
  const spans = spansOf([step(0, "published"), step(1, "delivered"), step(2, "nacked", `timeout; again at ${again}`), step(6, "delivered")], T0 + 8000);
  expect(spans.map((each) => [each.kind, (each.to - each.from) / 1000])).toEqual([
    ["waiting", 1],
    ["leased", 1],
    ["delayed", 2],
    ["waiting", 2],
    ["leased", 2],
  ]);
  expect(spans.at(-1)?.open).toBe(true);
  expect(totalsOf(spans)).toEqual([
    ["waiting", 3000],
    ["leased", 3000],
    ["delayed", 2000],
  ]);
});

it("goes on in the dead-letter queue, and back", () => {
  const spans = spansOf([step(0, "published"), step(1, "dead-lettered", "to orders-dead (max_receives: boom)"), step(3, "redriven", "to orders", "orders-dead")], T0 + 4000);
  expect(spans.map((each) => [each.kind, each.queue])).toEqual([
    ["waiting", "orders"],
    ["dead", "orders-dead"],
    ["waiting", "orders"],
  ]);
});

it("ignores edits and extensions", () => {
  expect(spansOf([step(0, "published"), step(1, "edited"), step(2, "delivered"), step(3, "extended")], T0 + 5000)).toHaveLength(2);
  expect(spansOf([], T0)).toEqual([]);
});

it("reads the target of a move", () => {
  expect([targetOf("to a b"), targetOf("to dead (expired)"), targetOf("")]).toEqual(["a b", "dead", ""]);
});

it("has few and round ticks", () => {
  expect(ticksOf(0, 10_000)).toEqual([0, 2000, 4000, 6000, 8000, 10_000]);
  expect(ticksOf(0, 0)).toEqual([0, 1]);
  expect(ticksOf(0, 40 * 86_400_000).length).toBeLessThan(8);
});

it("marks good and bad ends", () => {
  expect([toneOf("acked"), toneOf("nacked"), toneOf("purged"), toneOf("published")]).toEqual(["good", "bad", "warn", undefined]);
});
