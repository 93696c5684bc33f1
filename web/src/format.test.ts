import { describe, expect, it } from "vitest";

import { bytes, count, csvOf, duration, oneLine, plural, rate, relative, upright } from "./format";

describe("numbers", () => {
  it("are grouped, and short from a million on", () => {
    expect(count(12345)).toBe((12345).toLocaleString());
    expect(count(2_500_000)).toMatch(/^2[.,]5/);
    expect(count(null)).toBe("–");
  });
  it("of rates keep a digit while they are small", () => {
    expect(rate(0)).toBe("0");
    expect(rate(0.44)).toBe("0.4");
    expect(rate(12.4)).toBe("12");
  });
  it("of bytes have a unit", () => {
    expect(bytes(0)).toBe("0 B");
    expect(bytes(1536)).toBe("1.5 KiB");
    expect(bytes(5 * 1024 ** 3)).toBe("5 GiB");
  });
  it("agree with their noun", () => {
    expect(plural(1, "policy", "policies")).toBe("1 policy");
    expect(plural(2, "message")).toBe("2 messages");
  });
});

describe("texts of others", () => {
  it("do not turn the direction of what follows", () => {
    expect(upright("gpj.\u202eexe \u2067x\u2069")).toBe("gpj.\ufffdexe \ufffdx\ufffd");
    expect(upright("عربي")).toBe("عربي");
  });
});

describe("times", () => {
  it("have the unit that is read best", () => {
    expect(duration(0.00002)).toBe("20 µs");
    expect(duration(0.35)).toBe("350 ms");
    expect(duration(2.13)).toBe("2.1 s");
    expect(duration(90)).toBe("90 s");
    expect(duration(3 * 3600 + 300)).toBe("3 h 5 min");
    expect(duration(5 * 86_400)).toBe("5 d");
    expect(duration(null)).toBe("–");
  });
  it("are relative to now, in both directions", () => {
    expect(relative(1000, 61_000)).toBe("60 s ago");
    expect(relative(61_000, 1000)).toBe("in 60 s");
  });
});

describe("one line", () => {
  it("has no control characters and an end", () => {
    expect(oneLine("a\u0000b\nc")).toBe("a b c");
    expect(oneLine("x".repeat(300), 10)).toBe(`${"x".repeat(10)}…`);
  });
});

it("a CSV file quotes what needs it, and no text becomes a formula", () => {
  expect(csvOf([["a", "b"], ['say "hi", twice', -1.5], ["=1+1", null]])).toBe('a,b\r\n"say ""hi"", twice",-1.5\r\n\'=1+1,\r\n');
});
