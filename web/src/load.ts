/** Values that a screen loads: one hook for loading, errors, refreshing and races between answers. */
import { useEffect, useRef, useState } from "preact/hooks";

import { Problem } from "./api/client";
import { returns } from "./live";

export interface Loaded<T> {
  value: T | undefined;
  problem: Problem | undefined;
  /** True until the first answer; later loads keep the old value on the screen. */
  loading: boolean;
  reload: () => void;
}

/**
 * Loads when `keys` change, and again every `everySeconds` while the page is visible.
 * Only the answer to the latest load counts. A refresh waits for the answer before it: a slow server would
 * otherwise never get one to the screen.
 */
export function useLoad<T>(load: (signal: AbortSignal) => Promise<T>, keys: unknown[], everySeconds?: number): Loaded<T> {
  const [state, setState] = useState<{ value?: T; problem?: Problem; loading: boolean }>({ loading: true });
  const [turn, setTurn] = useState(0);
  const shown = useRef<string>("");
  const pending = useRef(0);
  const key = JSON.stringify(keys);

  useEffect(() => {
    const aborter = new AbortController();
    // Another subject: its old value would be wrong on the screen.
    if (shown.current !== key) setState({ loading: true });
    pending.current += 1;
    const loading = load(aborter.signal);
    void loading.catch(() => undefined).then(() => (pending.current -= 1));
    loading.then(
      (value) => {
        if (aborter.signal.aborted) return;
        shown.current = key;
        setState({ value, loading: false });
      },
      (error: unknown) => {
        if (aborter.signal.aborted) return;
        const problem = error instanceof Problem ? error : new Problem(0, "page", String(error));
        setState((old) => ({ value: shown.current === key ? old.value : undefined, problem, loading: false }));
      },
    );
    return () => aborter.abort();
  }, [key, turn]);

  useEffect(() => {
    if (!everySeconds) return;
    const timer = setInterval(() => {
      if (!document.hidden && pending.current === 0) setTurn((old) => old + 1);
    }, everySeconds * 1000);
    return () => clearInterval(timer);
  }, [everySeconds]);

  // What failed while the server was away is loaded again once it is back.
  const returned = useRef(returns.peek());
  const isUnreachable = state.problem?.status === 0;
  useEffect(() => {
    if (returns.value === returned.current) return;
    returned.current = returns.value;
    if (isUnreachable) setTurn((old) => old + 1);
  }, [returns.value, isUnreachable]);

  return { value: state.value, problem: state.problem, loading: state.loading, reload: () => setTurn((old) => old + 1) };
}
