import { expect, test } from "vitest";

import type { UserView } from "../api/schema";
import { covers, parseRules, permissionRows, ruleLine } from "./rules";

function user(changes: Partial<UserView>): UserView {
  return { name: "ann", account: "000000000000", role: "none", rules: [], disabled: false, root: false, has_password: true, created_at: "", ...changes };
}

test("rules are read and written as lines", () => {
  const text = "allow send,peek orders*\ndeny receive secrets in 111122223333";
  const { rules, wrong } = parseRules(`\n  ${text}\n\n`);
  expect(wrong).toBeUndefined();
  expect(rules.map(ruleLine).join("\n")).toBe(text);
  expect(parseRules("allow manage").rules).toEqual([{ effect: "allow", actions: ["manage"], queues: "*", account: null }]);
});

test.each([
  ["permit send a", "Line 1: a rule begins with allow or deny."],
  ["allow send a\nallow write b", "Line 2: write is no action"],
  ["allow", "Line 1: an action is missing"],
  ["allow send a b", "Line 1: after the queues"],
])("a bad line is named: %s", (text, wrong) => {
  expect(parseRules(text).wrong).toContain(wrong);
});

test.each([
  ["*", "orders*", true],
  ["orders*", "orders-eu", true],
  ["orders*", "orders-*", true],
  ["orders-*", "orders*", false],
  ["a?", "a*", false],
  ["a?", "ab", true],
  ["a*b", "a-b-b", true],
  ["a", "a", true],
  ["a", "", false],
  ["", "", true],
])("%s covers %s: %s", (outer, inner, expected) => {
  expect(covers(outer, inner)).toBe(expected);
});

test("a deny outweighs the role, in its own row only", () => {
  const rows = permissionRows([user({ role: "manager", rules: [{ effect: "deny", actions: ["receive"], queues: "secrets" }] })]);
  expect(rows.map((row) => [row.queues, row.verdicts.send, row.verdicts.receive])).toEqual([
    ["*", "allow", "allow"],
    ["secrets", "allow", "deny"],
  ]);
  expect(rows[0]!.from).toEqual(["role manager"]);
  expect(rows[1]!.from).toEqual(["deny receive secrets"]);
});

test("rules for another account are rows of their own", () => {
  const rows = permissionRows([user({ role: "viewer", rules: [{ effect: "allow", actions: ["send"], queues: "*", account: "111122223333" }] })]);
  expect(rows.map((row) => [row.account, row.verdicts.peek, row.verdicts.send])).toEqual([
    ["000000000000", "allow", "none"],
    ["111122223333", "none", "allow"],
  ]);
});

test("a user without permissions has a row that says so", () => {
  expect(permissionRows([user({})])).toMatchObject([{ queues: "*", from: [], verdicts: { send: "none", manage: "none" } }]);
});
