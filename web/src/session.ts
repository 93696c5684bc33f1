/** Who is signed in, and what they may do. */
import { signal } from "@preact/signals";

import { call, onSessionEnd } from "./api/client";
import type { LoginRequest, SessionView } from "./api/schema";

/** undefined: not asked yet; null: a login is needed. */
export const session = signal<SessionView | null | undefined>(undefined);

export async function loadSession(): Promise<void> {
  const now = await call("show_session", {});
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

/** Actions are shown only to those who may change something. The server decides anyway. */
export function mayChange(): boolean {
  return session.value !== null && session.value !== undefined && !session.value.read_only;
}

onSessionEnd(() => {
  session.value = null;
});
