import { expect, it } from "vitest";

import { addPage } from "./pages";

it("keeps the newest rows, and says how many it dropped", () => {
  expect(addPage([1, 2], [3], 5)).toEqual({ rows: [1, 2, 3], dropped: 0 });
  expect(addPage([1, 2, 3], [4, 5], 3)).toEqual({ rows: [3, 4, 5], dropped: 2 });
});
