/** Who may do what on one queue, and by which rule. The policy of the queue itself is not part of it. */
import { covers, ruleLine, rulesOf, type QueueAction } from "../admin/rules";
import type { UserView } from "../api/schema";

export interface Reasoned {
  may: boolean;
  /** What decides it. */
  because: string;
}

/** A deny outweighs every allow; without a rule it is denied. `account` is the one of the queue. */
export function verdict(user: UserView, action: QueueAction, queue: string, account: string): Reasoned {
  if (user.disabled) return { may: false, because: "the user is disabled" };
  // An account stands for all its regions.
  const owner = account.slice(account.lastIndexOf(".") + 1);
  const rules = rulesOf(user);
  const roleRules = rules.length - user.rules.length;
  const applying = rules.flatMap((rule, index) => {
    const place = rule.account ?? user.account;
    const isHere = place === "*" || place === account || place === owner;
    return isHere && rule.actions.includes(action) && covers(rule.queues ?? "*", queue) ? [{ rule, name: index < roleRules ? `role ${user.role}` : ruleLine(rule) }] : [];
  });
  const deciding = applying.find(({ rule }) => rule.effect === "deny") ?? applying[0];
  return deciding ? { may: deciding.rule.effect === "allow", because: deciding.name } : { may: false, because: "no rule allows it" };
}
