import { expect, it } from "vitest";

import type { UserView } from "../api/schema";
import { verdict } from "./access";

const ACCOUNT = "000000000000";
const user = (changes: Partial<UserView>): UserView => ({ name: "ann", account: ACCOUNT, role: "none", rules: [], disabled: false, root: false, has_password: true, created_at: "", ...changes });

it("lets a deny outweigh every allow", () => {
  const both = user({ role: "manager", rules: [{ effect: "deny", actions: ["send"], queues: "pay*" }] });
  expect(verdict(both, "send", "payments", ACCOUNT)).toEqual({ may: false, because: "deny send pay*" });
  expect(verdict(both, "send", "orders", ACCOUNT)).toEqual({ may: true, because: "role manager" });
});

it("denies without a rule, to the disabled, and in other accounts", () => {
  expect(verdict(user({}), "peek", "q", ACCOUNT).may).toBe(false);
  expect(verdict(user({ role: "admin", disabled: true }), "peek", "q", ACCOUNT).may).toBe(false);
  expect(verdict(user({ role: "viewer", account: "111111111111" }), "peek", "q", ACCOUNT).may).toBe(false);
  expect(verdict(user({ role: "admin", account: "111111111111" }), "peek", "q", ACCOUNT).may).toBe(true);
});

it("reads rules for a region of an account, and for all", () => {
  const rules = [{ effect: "allow" as const, actions: ["receive"], queues: "q", account: "*" }];
  expect(verdict(user({ account: "1", rules }), "receive", "q", `eu-west-1.${ACCOUNT}`)).toEqual({ may: true, because: "allow receive q in *" });
});
