import { expect, test } from "vitest";

import { hoursOf, readAnalytics, readTriage, timesOf } from "./results";

test("values that are not results are none", () => {
  for (const text of [undefined, "", "{", "[]", "null", '{"made": 1}', '{"made": "x", "queues": {}}']) {
    expect(readAnalytics(text)).toBeUndefined();
    expect(readTriage(text)).toBeUndefined();
  }
  expect(readTriage('{"made": "2026-01-01T00:00:00Z", "groups": []}')?.groups).toEqual([]);
});

test("times are those of the longest line", () => {
  const points = { published: [1, 2, 3] } as never;
  expect(timesOf({ from_us: 10e6, step_us: 5e6, queues: { a: points } })).toEqual([10, 15, 20]);
});

test("hours of a day are summed, and the last days are kept", () => {
  const noon = new Date(2026, 4, 3, 12).getTime() / 1000;
  const cells = hoursOf([noon - 86_400, noon, noon + 1800, noon + 3600], [9, 1, 2, 4], 1);
  expect(cells.map(({ hour, value }) => [hour, value])).toEqual([
    [12, 3],
    [13, 4],
  ]);
});
