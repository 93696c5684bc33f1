import { expect, it } from "vitest";

import { MAX_IN_ADDRESS, readSelection, writeSelection } from "./selection";

it("keeps ids of every kind", () => {
  const ids = ["0190-1", "a,b", "50%", "ü/ &=#", "%2C"];
  expect(readSelection(writeSelection(ids)!)).toEqual(ids);
});

it("keeps no part of a selection that is too large for an address", () => {
  const ids = Array.from({ length: MAX_IN_ADDRESS + 1 }, (_, at) => `id${at}`);
  expect(writeSelection(ids)).toBeUndefined();
  expect(writeSelection(ids.slice(1))).toBeDefined();
  expect(writeSelection(Array.from({ length: 40 }, (_, at) => `${at}-${"x".repeat(200)}`))).toBeUndefined();
  expect(writeSelection([])).toBeUndefined();
});

it("reads an address that somebody has changed", () => {
  expect(readSelection(null)).toEqual([]);
  expect(readSelection("a,,a,%E0%A4%A,b")).toEqual(["a", "%E0%A4%A", "b"]);
  expect(readSelection(Array.from({ length: 90 }, (_, at) => at).join(",")).length).toBe(MAX_IN_ADDRESS);
});
