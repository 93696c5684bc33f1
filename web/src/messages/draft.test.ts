import { expect, it } from "vitest";

import { draftOf, EMPTY, sendLine } from "./draft";

it("makes a message of the form", () => {
  const { message, times, problems } = draftOf({ ...EMPTY, kind: "json", body: '{"a": 1}', type: "order", delay: "5m", ttl: "1h", priority: "7", group: "g", attributes: [["colour", "red"], ["", ""]], times: "3" });
  expect(problems).toEqual({});
  expect(times).toBe(3);
  expect(message).toEqual({ payload: { a: 1 }, message_type: "order", delay: 300, ttl: 3600, priority: 7, group: "g", attributes: { colour: "red" } });
});

it("says what is wrong, by field", () => {
  const { problems } = draftOf({ ...EMPTY, kind: "json", body: "{", delay: "soon", priority: "300", times: "0", attributes: [["", "x"]] });
  expect(Object.keys(problems).sort()).toEqual(["attributes", "body", "delay", "priority", "times"]);
  expect(draftOf({ ...EMPTY, dedup: "a", times: "2" }).problems.times).toContain("first one");
  expect(draftOf({ ...EMPTY, kind: "base64", body: "***" }).problems.body).toBe("Not base64.");
  expect(draftOf({ ...EMPTY, attributes: [["a", "1"], ["a", "2"]] }).problems.attributes).toContain("twice");
});

it("keeps a JSON text JSON", () => {
  expect(draftOf({ ...EMPTY, kind: "json", body: '"hi"' }).message).toEqual({ payload: "hi", payload_encoding: "json" });
});

it("gives the same as a command", () => {
  expect(sendLine("q", { ...EMPTY, kind: "json", body: '{"a":1}', type: "t", attributes: [["k", "v w"]] })).toBe(`openq send q '{"a":1}' --as json --type t --attribute 'k=v w'`);
});

it("gives many messages as one line, and words that begin with a dash as they are", () => {
  expect(sendLine("q", { ...EMPTY, body: "x", times: "3" })).toBe("for i in $(seq 3); do openq send q x; done");
  expect(sendLine("q", { ...EMPTY, body: "a\nb", type: "t" }, true)).toBe("openq send q --lines --type t < FILE");
  expect(sendLine("q", { ...EMPTY, body: "-5", group: "-g" })).toBe("openq send --group=-g q -- -5");
  expect(sendLine("q", EMPTY)).toBe("openq send q ''");
  expect(sendLine("q", { ...EMPTY, body: "-" })).toBe("printf %s - | openq send q -- -");
});

it("gives times in seconds, whatever their unit was", () => {
  expect(sendLine("q", { ...EMPTY, body: "x", delay: "10min", ttl: "1.5h" })).toBe("openq send q x --delay 600 --ttl 5400");
});
