/** Who is signed in, and what they may do. */
import { signal } from "@preact/signals";

import { covers, type QueueAction } from "./admin/rules";
import { call, onSessionEnd } from "./api/client";
import { setNeedsToken } from "./api/lines";
import type { LoginRequest, RuleView, SessionView } from "./api/schema";

/** undefined: not asked yet; null: a login is needed. */
export const session = signal<SessionView | null | undefined>(undefined);

export async function loadSession(): Promise<void> {
  const now = await call("show_session", {});
  setNeedsToken(now.login_required);
  session.value = now.authenticated || !now.login_required ? now : null;
}

export async function signIn(credentials: LoginRequest): Promise<void> {
  await call("begin_session", {}, credentials);
  await loadSession();
}

export async function signOut(everywhere: boolean): Promise<void> {
  if (everywhere) await call("end_sessions", {});
  else await call("end_session", {});
  session.value = null;
}

/** Open access: the server has no users. */
export function isOpen(): boolean {
  return session.value !== null && session.value !== undefined && !session.value.login_required;
}

export function isAdmin(): boolean {
  return isOpen() || session.value?.permissions?.admin === true || session.value?.is_root === true;
}

/** Screens about the whole server and not about queues: for those whose rules allow to peek without naming queues. */
export function maySeeServer(): boolean {
  const now = session.value;
  if (!now) return false;
  if (isAdmin()) return true;
  const isAllowed = (rules: RuleView[]) => allowsRules(rules.filter((rule) => (rule.queues ?? "*") === "*"), "peek", now.account);
  return (now.is_root || isAllowed(now.rules)) && (!now.token_rules || isAllowed(now.token_rules));
}

/** Actions are shown only to those who may change something. The server decides anyway. */
export function mayChange(): boolean {
  return session.value !== null && session.value !== undefined && !session.value.read_only;
}

/**
 * Whether the page offers an action on a queue, or without one: on any queue. By the rules of the user and of its token;
 * the policy of a queue may allow more, and the server decides anyway.
 */
export function may(action: QueueAction, queue?: string): boolean {
  const now = session.value;
  if (!now || !mayChange()) return false;
  if (isOpen()) return true;
  if (queue === undefined) return now.permissions?.[action] !== "none";
  if (now.token_rules && !allows(now.token_rules, action, queue, now.account)) return false;
  return now.is_root || allows(now.rules, action, queue, now.account);
}

function allows(rules: RuleView[], action: QueueAction, queue: string, account: string | null): boolean {
  return allowsRules(rules.filter((rule) => covers(rule.queues ?? "*", queue)), action, account);
}

/** A deny outweighs every allow. */
function allowsRules(rules: RuleView[], action: QueueAction, account: string | null): boolean {
  const applying = rules.filter((rule) => {
    const isHere = rule.account === null || rule.account === "*" || rule.account === account;
    return isHere && rule.actions.includes(action);
  });
  return applying.length > 0 && applying.every((rule) => rule.effect === "allow");
}

onSessionEnd(() => {
  session.value = null;
});
