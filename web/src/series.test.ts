import { expect, it } from "vitest";

import type { SeriesView } from "./api/schema";
import { finished } from "./series";

const series = { times: [100, 102, 104], step: 2, sums: ["published"], values: { published: [8, 9, 1], ready: [5, 5, 5] } } as unknown as SeriesView;

it("leaves out a step that still goes on", () => {
  const found = finished(series, 105);
  expect(found.times).toEqual([100, 102]);
  expect(found.values).toEqual({ published: [8, 9], ready: [5, 5] });
  expect(finished(series, 106)).toBe(series);
});
