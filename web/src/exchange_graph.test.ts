import { expect, test } from "vitest";

import type { BindingView } from "./api/schema";
import { layOut, MAX_BINDINGS } from "./exchange_graph";

const binding = (source: string, destination: string, key = "", toExchange = false): BindingView => ({ source, destination, key, to_exchange: toExchange, arguments: {} });

test("exchanges stand as messages go, queues at the right end", () => {
  const graph = layOut([binding("in", "audit", "", true), binding("audit", "log"), binding("in", "orders", "a"), binding("in", "orders", "b")]);
  const column = (id: string) => graph.boxes.find((box) => box.id === id)?.column;
  expect([column("exchange in"), column("exchange audit"), column("queue log"), column("queue orders")]).toEqual([0, 1, 2, 2]);
  expect(graph.lines.find((line) => line.to.name === "orders")?.keys).toEqual(["a", "b"]);
});

test("a circle ends, a name may be an exchange and a queue, and there is a limit", () => {
  expect(layOut([binding("a", "b", "", true), binding("b", "a", "", true), binding("b", "b")]).boxes).toHaveLength(3);
  expect(layOut(Array.from({ length: MAX_BINDINGS + 5 }, (_, index) => binding("x", `q${index}`))).hidden).toBe(5);
  expect(layOut([]).lines).toEqual([]);
});
