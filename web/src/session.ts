/** Who is signed in, and what they may do. */
import { signal } from "@preact/signals";

import { onSessionEnd, Problem, send } from "./api/client";

export interface Session {
  user: string;
  account: string;
  is_root: boolean;
  /** True while the server has no users: everybody may do everything. */
  open: boolean;
  read_only?: boolean;
  version?: string;
  server?: string;
}

/** undefined: not asked yet; null: a login is needed. */
export const session = signal<Session | null | undefined>(undefined);

export async function loadSession(): Promise<void> {
  try {
    session.value = await send<Session>({ method: "GET", path: "/api/v1/session" });
  } catch (error) {
    if (error instanceof Problem && error.status === 401) session.value = null;
    else throw error;
  }
}

export async function signIn(credentials: { user: string; password: string } | { token: string }): Promise<void> {
  await send({ method: "POST", path: "/api/v1/session", body: credentials });
  await loadSession();
}

export async function signOut(everywhere: boolean): Promise<void> {
  await send({ method: "DELETE", path: everywhere ? "/api/v1/sessions" : "/api/v1/session" });
  session.value = null;
}

export function isAdmin(): boolean {
  const now = session.value;
  return now !== null && now !== undefined && (now.is_root || now.open);
}

/** Actions are shown only to those who may change something. The server decides anyway. */
export function mayChange(): boolean {
  return session.value !== null && session.value !== undefined && !session.value.read_only;
}

onSessionEnd(() => {
  session.value = null;
});
