import { expect, it } from "vitest";

import { differences, leaves } from "./differ";

it("names the leaves of a value by their path", () => {
  expect([...leaves({ a: [1, { b: "x" }], c: {} })]).toEqual([
    ["a[0]", "1"],
    ["a[1].b", "x"],
    ["c", "{}"],
  ]);
  expect([...leaves("text")]).toEqual([["(body)", "text"]]);
});

it("puts what differs first and says what is missing", () => {
  const rows = differences([
    { same: 1, id: 7 },
    { same: 1, id: 8, extra: true },
  ]);
  expect(rows).toEqual([
    { path: "id", values: ["7", "8"], isSame: false },
    { path: "extra", values: [undefined, "true"], isSame: false },
    { path: "same", values: ["1", "1"], isSame: true },
  ]);
});
