import { expect, test } from "vitest";

import type { MessageView } from "../api/schema";
import { batches, readPresent, restoredDraft } from "./restore";

const NOW = Date.parse("2026-01-01T00:00:00Z");

function message(id: string, more: Partial<MessageView> = {}): MessageView {
  return { id, timestamp: "2025-12-31T00:00:00Z", payload: "x", status: "queued", message_type: null, priority: 0, receive_count: 0, attributes: {}, ...more };
}

test("a search that ends early is repeated with the other ids", async () => {
  const replies = [
    { messages: [message("a")], complete: false, scanned: 1 },
    { messages: [message("c")], complete: false, scanned: 1 },
    { messages: [], complete: true, scanned: 1 },
  ];
  const asked: string[] = [];
  const found = await readPresent(["a", "b", "c"], ({ ids, limit }) => {
    asked.push(`${ids.join(" ")} ${limit}`);
    return Promise.resolve(replies[asked.length - 1]!);
  });

  expect(found.map((each) => each.id)).toEqual(["a", "c"]);
  expect(asked).toEqual(["a b c 3", "b c 2", "b 1"]);
});

test("a search that finds nothing in its time is not repeated for ever", async () => {
  let asked = 0;
  const found = await readPresent(["a"], () => {
    asked += 1;
    return Promise.resolve({ messages: [], complete: false, scanned: 0 });
  });

  expect([found.length, asked]).toEqual([0, 1]);
});

test("more ids than one search takes are several searches", async () => {
  const sizes: number[] = [];
  await readPresent(Array.from({ length: 2300 }, (_, at) => `id${at}`), ({ ids }) => {
    sizes.push(ids.length);
    return Promise.resolve({ messages: [], complete: true, scanned: 0 });
  });

  expect(sizes).toEqual([1000, 1000, 300]);
});

test("a restored message is due and expires when it was, and keeps its past", () => {
  const delayed = restoredDraft(message("a", { due_at: "2026-01-01T01:00:00Z", expires_at: "2026-01-01T01:30:00Z", receive_count: 3, reason: "timeout" }), NOW);
  expect(delayed).toMatchObject({ id: "a", at: "2026-01-01T01:00:00Z", ttl: 1800, receive_count: 3, reason: "timeout" });
  expect(delayed.delay).toBeUndefined();
  const ready = restoredDraft(message("b", { due_at: "2025-12-31T01:00:00Z", expires_at: "2026-01-01T00:00:10Z" }), NOW);
  expect([ready.at, ready.delay, ready.ttl]).toEqual([undefined, 0, 10]);
  expect(restoredDraft(message("c"), NOW).ttl).toBeUndefined();
  expect(restoredDraft(message("d", { expires_at: "2025-12-31T23:00:00Z" }), NOW).ttl).toBe(0.001);
});

test("a text that is JSON by itself stays text", () => {
  expect(restoredDraft(message("a", { payload_form: "json" }), NOW).payload_encoding).toBe("json");
});

test("batches are bounded by count and by size", () => {
  const drafts = ["a", "b", "c", "d"].map((payload) => ({ payload }));
  expect(batches(drafts, 3).map((part) => part.length)).toEqual([3, 1]);
  const one = JSON.stringify(drafts[0]).length;
  expect(batches(drafts, 100, 2 * one).map((part) => part.length)).toEqual([2, 2]);
  expect(batches(drafts, 100, 1).map((part) => part.length)).toEqual([1, 1, 1, 1]);
  expect(batches([])).toEqual([]);
});
