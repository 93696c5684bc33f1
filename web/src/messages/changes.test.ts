import { expect, test } from "vitest";

import { readChanges } from "./changes";

test("values are JSON where they can be, otherwise text", () => {
  expect(readChanges('total=12\n a.b = "12"\nstate=again\nnone=null', "")).toEqual({ set: { total: 12, "a.b": "12", state: "again", none: null }, remove: [] });
});

test("a line without a path is a problem, and the others are read", () => {
  const read = readChanges("nonsense\n=1\ntotal=1", " a.b \n\nc");
  expect(read.problem).toContain("nonsense");
  expect(read.set).toEqual({ total: 1 });
  expect(read.remove).toEqual(["a.b", "c"]);
});
