import { describe as group, expect, it } from "vitest";

import { SETTINGS } from "../api/schema";
import { changeOf, describe, differences, formOf, groups, read, settingsLine, show, showSize, showTime, titleOf } from "./settings";

const base = { visibility_timeout: 30, dlq: null, retention: null, max_bytes: 1 << 20, fifo: false, paused: false };

group("values", () => {
  it("shows times and sizes in their largest whole unit", () => {
    expect([showTime(0), showTime(30), showTime(90), showTime(3600), showTime(345_600), showTime(0.5), showTime(1.5)]).toEqual(["0s", "30s", "90s", "1h", "4d", "500ms", "1.5s"]);
    expect([showSize(1 << 20), showSize(1000), showSize(3 << 10)]).toEqual(["1 MiB", "1000", "3 KiB"]);
  });
  it("reads what it shows", () => {
    for (const [name, value] of Object.entries({ visibility_timeout: 90, retention: null, max_bytes: 1 << 20, max_length: 5, dlq: "dead", overflow: "reject" })) {
      const setting = describe(name);
      expect(read(setting, show(setting, value)), name).toEqual(value);
    }
  });
  it("shows and reads limits of keys as the command line does", () => {
    const setting = describe("key_limits");
    const limits = { "tenant-17": { concurrency: 3, rate: "100/m burst 20" }, "a=b": { rate: null } };
    expect(show(setting, limits)).toBe("tenant-17=concurrency:3,rate:100/m burst 20; a=b=rate:none");
    expect(read(setting, show(setting, limits))).toEqual(limits);
    expect(show(setting, {})).toBe("");
    expect(read(setting, '{"k": {"concurrency": 1}}')).toEqual({ k: { concurrency: 1 } });
    expect(read(setting, show(setting, { "a;b": { concurrency: 1 } }))).toEqual({ "a;b": { concurrency: 1 } });
    for (const text of ["x", "k=", "k=concurrency:many", "=rate:1/s"]) expect(() => read(setting, text), text).toThrow("such as");
    const before = formOf({ ...base, key_limits: {} });
    expect(settingsLine("edit", "q", differences(before, { ...before, key_limits: "t=concurrency:3" }).changes)).toBe("openq queue edit q --key-limits t=concurrency:3");
  });
  it("takes an empty field for no limit, and says where a value is needed", () => {
    expect(read(describe("max_length"), "")).toBeNull();
    expect(read(describe("history"), "forever")).toBeNull();
    expect(() => read(describe("visibility_timeout"), "")).toThrow("needed");
  });
  it("refuses what the server would refuse", () => {
    for (const [name, text] of [
      ["visibility_timeout", "soon"],
      ["max_receives", "0"],
      ["max_priority", "256"],
      ["max_length", "1.5"],
      ["overflow", "explode"],
      ["retry", "[1]"],
      ["key_limits", "x"],
      ["max_bytes", "big"],
    ] as const) {
      expect(() => read(describe(name), text), name).toThrow();
    }
  });
});

it("has every setting of the server in one group", () => {
  const names = groups().flatMap((each) => each.names);
  expect([...names].sort()).toEqual(SETTINGS.map((each) => each.name).sort());
});

group("differences", () => {
  it("finds what changed, and only that", () => {
    const before = formOf(base);
    const { changes, problems } = differences(before, { ...before, visibility_timeout: "2m", dlq: "dead", max_bytes: "1024 KiB" });
    expect(problems).toEqual({});
    expect(changeOf(changes)).toEqual({ visibility_timeout: 120, dlq: "dead" });
    expect(settingsLine("edit", "my queue", changes)).toBe("openq queue edit 'my queue' --visibility-timeout 2m --dlq dead");
  });
  it("names the fields that cannot be read", () => {
    const before = formOf(base);
    expect(Object.keys(differences(before, { ...before, delay: "x" }).problems)).toEqual(["delay"]);
  });
  it("writes flags and ends of time as options", () => {
    const before = formOf({ ...base, retention: 60 });
    const { changes } = differences(before, { ...before, fifo: "true", retention: "forever" });
    expect(settingsLine("edit", "q", changes)).toBe("openq queue edit q --retention forever --fifo");
  });
  it("has no command where there is no option", () => {
    const before = formOf(base);
    expect(settingsLine("edit", "q", differences(before, { ...before, paused: "true" }).changes)).toBeUndefined();
  });
});

it("makes titles of names", () => {
  expect([titleOf("dlq"), titleOf("message_ttl"), titleOf("visibility_timeout")]).toEqual(["Dead-letter queue", "Message TTL", "Visibility timeout"]);
});
