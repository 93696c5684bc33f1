/** Who may do what on a queue, by the rules of the users. The policy of the queue itself is not part of it. */
import type { RuleView, UserView } from "../api/schema";

export const ACTIONS = ["send", "receive", "peek", "manage"] as const;
export type QueueAction = (typeof ACTIONS)[number];

const ROLES: Record<string, readonly string[]> = {
  admin: ACTIONS,
  manager: ACTIONS,
  operator: ["receive", "peek", "manage"],
  producer: ["send"],
  consumer: ["receive"],
  viewer: ["peek"],
};

/** `orders-*` matches what begins so; `?` is one character. */
export function matchesPattern(pattern: string, name: string): boolean {
  const text = pattern.replace(/[.+^${}()|[\]\\]/g, "\\$&").replaceAll("*", ".*").replaceAll("?", ".");
  return new RegExp(`^${text}$`, "s").test(name);
}

export interface Verdict {
  may: boolean;
  /** What decides it. */
  because: string;
}

/** A deny outweighs every allow; without a rule it is denied. `account` is the one of the queue. */
export function verdict(user: UserView, action: QueueAction, queue: string, account: string): Verdict {
  if (user.disabled) return { may: false, because: "the user is disabled" };
  const owner = account.slice(account.lastIndexOf(".") + 1);
  const covers = (named: string) => named === "*" || named === account || named === owner;
  const concerns = (rule: RuleView) => rule.actions.includes(action) && covers(rule.account ?? user.account) && matchesPattern(rule.queues ?? "*", queue);
  const rules = user.rules.filter(concerns);
  const deny = rules.find((rule) => rule.effect === "deny");
  if (deny) return { may: false, because: `denied on ${deny.queues ?? "*"}` };
  // Roles except admin are limited to the user's own account.
  if (ROLES[user.role]?.includes(action) && (user.role === "admin" || covers(user.account))) return { may: true, because: `role ${user.role}` };
  const allow = rules[0];
  return allow ? { may: true, because: `allowed on ${allow.queues ?? "*"}` } : { may: false, because: "no rule allows it" };
}
