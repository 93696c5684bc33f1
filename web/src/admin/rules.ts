/** Rules of users as text, one a line, and the permissions that a role and rules add up to. */
import { ROLES, type RuleView, type UserView } from "../api/schema";

export const QUEUE_ACTIONS = ["send", "receive", "peek", "manage"] as const;
export type QueueAction = (typeof QUEUE_ACTIONS)[number];
const ACTIONS: readonly string[] = [...QUEUE_ACTIONS, "admin"];

/** `allow send,peek orders*`, with `in ACCOUNT` for queues of another account. */
export function ruleLine(rule: RuleView): string {
  const account = rule.account ? ` in ${rule.account}` : "";
  return `${rule.effect} ${rule.actions.join(",")} ${rule.queues ?? "*"}${account}`;
}

/** The rules of a text, or what is wrong with its first bad line. */
export function parseRules(text: string): { rules: RuleView[]; wrong?: string } {
  const rules: RuleView[] = [];
  for (const [index, line] of text.split("\n").entries()) {
    const words = line.trim().split(/\s+/).filter(Boolean);
    if (words.length === 0) continue;
    const at = `Line ${index + 1}: `;
    const [effect, actions = "", queues = "*", ...rest] = words;
    if (effect !== "allow" && effect !== "deny") return { rules, wrong: `${at}a rule begins with allow or deny.` };
    const given = actions.split(",").filter(Boolean);
    const unknown = given.find((action) => !ACTIONS.includes(action));
    if (given.length === 0 || unknown !== undefined) {
      return { rules, wrong: `${at}${unknown === undefined ? "an action is missing" : `${unknown} is no action`}; there are ${ACTIONS.join(", ")}.` };
    }
    if (rest.length > 0 && (rest.length !== 2 || rest[0] !== "in")) return { rules, wrong: `${at}after the queues stands only "in ACCOUNT".` };
    rules.push({ effect, actions: given, queues, account: rest[1] ?? null });
  }
  return { rules };
}

/**
 * Whether every name that fits `inner` also fits `outer`: a wildcard of `inner` is covered only by one of `outer`.
 * Never says yes wrongly; may say no for patterns such as `*?` and `?*`.
 */
export function covers(outer: string, inner: string): boolean {
  let reached = new Set([0]);
  const skipStars = (places: Set<number>) => {
    for (const place of places) if (outer[place] === "*") places.add(place + 1);
    return places;
  };
  skipStars(reached);
  for (const letter of inner) {
    const next = new Set<number>();
    for (const place of reached) {
      if (outer[place] === "*") next.add(place);
      else if (outer[place] === letter || (outer[place] === "?" && letter !== "*")) next.add(place + 1);
    }
    reached = skipStars(next);
  }
  return reached.has(outer.length);
}

export type Verdict = "allow" | "deny" | "none";

export interface PermissionRow {
  user: UserView;
  /** A queue name or pattern. */
  queues: string;
  account: string;
  verdicts: Record<QueueAction, Verdict>;
  /** Where it is from: the role, rules, or both. */
  from: string[];
}

/** The rules of a user, those of its role first. */
export function rulesOf(user: UserView): RuleView[] {
  const actions = ROLES[user.role] ?? [];
  const account = user.role === "admin" ? "*" : null;
  return [...(actions.length ? [{ effect: "allow" as const, actions: [...actions], queues: "*", account }] : []), ...user.rules];
}

/** A row for each user and each pattern that its role or rules name. A deny outweighs every allow. */
export function permissionRows(users: UserView[]): PermissionRow[] {
  return users.flatMap((user) => {
    const rules = rulesOf(user);
    const placed = rules.map((rule) => ({ ...rule, queues: rule.queues ?? "*", account: rule.account ?? user.account }));
    const places = new Map(placed.map((rule) => [JSON.stringify([rule.account, rule.queues]), rule]));
    if (places.size === 0) return [{ user, queues: "*", account: user.account, verdicts: verdictsOf([]), from: [] }];
    return [...places.values()].map(({ queues, account }) => {
      const applying = placed.filter((rule) => covers(rule.queues, queues) && (rule.account === "*" || rule.account === account));
      const own = placed.flatMap((rule, index) => (rule.queues === queues && rule.account === account ? [index] : []));
      const roleRules = rules.length - user.rules.length;
      return {
        user,
        queues,
        account,
        verdicts: verdictsOf(applying),
        from: [...(own.some((index) => index < roleRules) ? [`role ${user.role}`] : []), ...own.filter((index) => index >= roleRules).map((index) => ruleLine(rules[index]!))],
      };
    });
  });
}

function verdictsOf(rules: RuleView[]): Record<QueueAction, Verdict> {
  const verdict = (action: QueueAction): Verdict => {
    const effects = rules.filter((rule) => rule.actions.includes(action)).map((rule) => rule.effect);
    return effects.includes("deny") ? "deny" : effects.includes("allow") ? "allow" : "none";
  };
  return { send: verdict("send"), receive: verdict("receive"), peek: verdict("peek"), manage: verdict("manage") };
}
