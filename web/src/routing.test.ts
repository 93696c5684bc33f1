import { expect, it } from "vitest";

import { routes, topicMatches } from "./routing";

const exchange = (name: string, kind: string, alternate: string | null = null) => ({
  ...{ name, kind, alternate, durable: true, auto_delete: false, internal: false, arguments: {} },
});
const bind = (source: string, destination: string, key = "", more: object = {}) => ({
  ...{ source, destination, key, to_exchange: false, arguments: {} as Record<string, unknown> },
  ...more,
});
const topic = (pattern: string, key: string) => topicMatches(pattern.split("."), key === "" ? [] : key.split("."));

it("matches topics word by word", () => {
  expect(topic("orders.*", "orders.new")).toBe(true);
  expect(topic("orders.*", "orders.new.eu")).toBe(false);
  expect(topic("orders.#", "orders")).toBe(true);
  expect(topic("#", "")).toBe(true);
  expect(topic("#.eu.#", "a.b.eu.c")).toBe(true);
  expect(topic("*.*", "one")).toBe(false);
});

it("follows bindings to exchanges, and says the way", () => {
  const found = routes([exchange("in", "fanout"), exchange("next", "direct")], [bind("in", "next", "", { to_exchange: true }), bind("next", "q", "k")], "in", "k", {});
  expect(found).toEqual([{ queue: "q", through: ["in", "next"] }]);
});

it("uses the alternate exchange where nothing matches, and ends a circle", () => {
  const exchanges = [exchange("a", "direct", "b"), exchange("b", "fanout", "a")];
  expect(routes(exchanges, [bind("b", "rest")], "a", "x", {})).toEqual([{ queue: "rest", through: ["a", "b"] }]);
  expect(routes(exchanges, [], "a", "x", {})).toEqual([]);
});

it("compares headers, all or any", () => {
  const all = bind("h", "q", "", { arguments: { shop: "north", kind: "order" } });
  const any = bind("h", "r", "", { arguments: { "x-match": "any", shop: "north", kind: "order" } });
  expect(routes([exchange("h", "headers")], [all, any], "h", "", { shop: "north" }).map((each) => each.queue)).toEqual(["r"]);
});
