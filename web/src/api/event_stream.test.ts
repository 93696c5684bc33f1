import { describe, expect, test } from "vitest";

import { backOff, EventParser } from "./event_stream";

describe("EventParser", () => {
  test("gives an event when its empty line is there, whatever the pieces", () => {
    const parser = new EventParser();
    const text = 'event: queues\ndata: {"a": 1}\n\n: alive\n\nevent: queues\ndata: 2\n\n';

    const found = [...text].flatMap((piece) => parser.feed(piece));

    expect(found).toEqual([
      { event: "queues", data: '{"a": 1}' },
      { event: "queues", data: "2" },
    ]);
  });

  test("joins lines of data, and takes a line end of two characters", () => {
    expect(new EventParser().feed("data: a\r\ndata: b\r\n\r\n")).toEqual([{ event: "message", data: "a\nb" }]);
  });

  test("keeps what is not complete", () => {
    const parser = new EventParser();
    expect(parser.feed("data: a\n")).toEqual([]);
    expect(parser.feed("\n")).toEqual([{ event: "message", data: "a" }]);
  });
});

test("the wait grows, has an end, and is never nothing", () => {
  const waits = [1, 2, 3, 4, 5, 20].map((failures) => backOff(failures, () => 1));
  expect(waits).toEqual([500, 1000, 2000, 4000, 5000, 5000]);
  expect(backOff(1, () => 0)).toBe(300);
});
