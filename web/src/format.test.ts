import { describe, expect, it } from "vitest";

import { bytes, count, duration, oneLine, plural, rate, relative } from "./format";

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
