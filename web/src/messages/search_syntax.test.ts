import { describe, expect, it } from "vitest";

import { parseSearch, searchOptions, seconds, terms } from "./search_syntax";

function filterOf(text: string) {
  const parsed = parseSearch(text);
  expect(parsed.problems).toEqual([]);
  return parsed.filter;
}

describe("terms", () => {
  it("splits at spaces and keeps quoted words together", () => {
    expect(terms(`a "b c" d:"e f"`)).toEqual([
      { text: "a", quoted: false },
      { text: "b c", quoted: true },
      { text: "d:e f", quoted: false },
    ]);
  });
  it("takes an open quote to the end and escaped quotes as they are", () => {
    expect(terms(`"a b`)).toEqual([{ text: "a b", quoted: true }]);
    expect(terms(`"say \\"hi\\""`)).toEqual([{ text: `say "hi"`, quoted: true }]);
  });
});

describe("parseSearch", () => {
  it("makes one text of the words", () => {
    expect(filterOf("refund of order")).toEqual({ text: "refund of order" });
    expect(filterOf("")).toEqual({});
  });
  it("reads attributes, and JSON values of attributes", () => {
    expect(filterOf("colour:red retries:=3")).toEqual({ attributes: { colour: "red", retries: 3 } });
    expect(filterOf(`customer:"Ann Lee"`)).toEqual({ attributes: { customer: "Ann Lee" } });
  });
  it("reads paths into the body", () => {
    expect(filterOf("body.order.total=12 body.name=ann")).toEqual({ json: { "order.total": 12, name: "ann" } });
    expect(filterOf(`body.done=true body.x=null`)).toEqual({ json: { done: true, x: null } });
  });
  it("reads ages and deliveries", () => {
    expect(filterOf("age>10m age<2h")).toEqual({ min_age: 600, max_age: 7200 });
    expect(filterOf("deliveries>=3")).toEqual({ min_receives: 3 });
    expect(filterOf("deliveries>3")).toEqual({ min_receives: 4 });
    expect(filterOf("deliveries<3")).toEqual({ max_receives: 2 });
    expect(filterOf("deliveries=0")).toEqual({ min_receives: 0, max_receives: 0 });
  });
  it("reads the names of a message's own fields", () => {
    expect(filterOf("type:order reason:timeout id:a id:b state:in-flight")).toEqual({
      message_type: "order",
      reason: "timeout",
      ids: ["a", "b"],
      state: "in_flight",
    });
  });
  it("leaves addresses and quoted text alone", () => {
    expect(filterOf("https://example.org/x")).toEqual({ text: "https://example.org/x" });
    expect(filterOf(`"colour:red"`)).toEqual({ text: "colour:red" });
  });
  it("says what it does not understand", () => {
    for (const text of ["age>soon", "age=5m", "deliveries>many", "deliveries<0", "state:lost", "x:=nope", "colour:"]) {
      expect(parseSearch(text).problems, text).toHaveLength(1);
    }
  });
});

it("reads times with and without a unit", () => {
  expect([seconds("30"), seconds("500ms"), seconds("1.5h"), seconds("2d"), seconds("5 min"), seconds("x")]).toEqual([30, 0.5, 5400, 172_800, 300, undefined]);
});

it("gives the same search as options of the command line", () => {
  expect(searchOptions(filterOf("type:order colour:red n:=1 body.total=12 age>10m state:ready"))).toEqual(
    "--type order --attribute colour=red --attribute n:=1 --where total=12 --min-age 600 --state ready".split(" "),
  );
});
