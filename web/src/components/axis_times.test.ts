import { expect, it } from "vitest";

import { axisTimes } from "./axis_times";

const NOON = new Date(2026, 4, 3, 12, 0, 0).getTime() / 1000;

it("has seconds only where they differ", () => {
  expect(axisTimes([NOON, NOON + 60])).toEqual(["12:00", "12:01"]);
  expect(axisTimes([NOON])).toEqual(["12:00"]);
  expect(axisTimes([NOON, NOON + 30])).toEqual(["12:00:00", "12:00:30"]);
});

it("has the date where a day begins", () => {
  const [before, after] = axisTimes([NOON, NOON + 43_200]);
  expect(before).toBe("12:00");
  expect(after).toMatch(/^(00|24):00\n/);
  expect(axisTimes([NOON, NOON + 86_400]).every((each) => !each.includes(":"))).toBe(true);
});
