/** Lists that are read page by page. Only the newest pages are kept, so that a queue of a million costs as much as one of a thousand. */
import { useEffect, useRef, useState } from "preact/hooks";

import { Problem } from "../api/client";

export interface Page<T> {
  rows: T[];
  /** Where the next page begins; undefined: this was the last one. */
  next?: string;
  scanned?: number;
}

export interface Pages<T> {
  rows: T[];
  /** Rows that were dropped at the beginning. */
  dropped: number;
  scanned: number;
  /** Seconds that the server has worked for it. */
  more: boolean;
  loading: boolean;
  problem: Problem | undefined;
  /** Loads the next page. */
  load: () => void;
  /** From the first page again. */
  restart: () => void;
}

const MAX_ROWS = 2000;

interface State<T> {
  rows: T[];
  dropped: number;
  scanned: number;
  pages: number;
  next: string | undefined;
  loading: boolean;
  problem?: Problem;
}

/** Adds a page and drops what is too much at the beginning. */
export function addPage<T>(rows: T[], page: T[], most = MAX_ROWS): { rows: T[]; dropped: number } {
  const all = [...rows, ...page];
  const dropped = Math.max(0, all.length - most);
  return { rows: dropped ? all.slice(dropped) : all, dropped };
}

/**
 * The first page is loaded again every `everySeconds` while it is the only one. A search of which a part found nothing
 * goes on by itself, for `goOnSeconds` at most.
 */
export function usePages<T>(
  read: (after: string, signal: AbortSignal) => Promise<Page<T>>,
  keys: unknown[],
  { everySeconds, goOnSeconds = 0 }: { everySeconds?: number; goOnSeconds?: number } = {},
): Pages<T> {
  const empty: State<T> = { rows: [], dropped: 0, scanned: 0, pages: 0, next: undefined, loading: true };
  const [state, setState] = useState<State<T>>(empty);
  const aborter = useRef<AbortController | undefined>(undefined);
  const now = useRef(state);
  now.current = state;
  const key = JSON.stringify(keys);

  function load(after: string, isFresh: boolean, began = Date.now()): void {
    aborter.current?.abort();
    const own = new AbortController();
    aborter.current = own;
    setState((old) => ({ ...old, loading: true }));
    read(after, own.signal).then(
      (page) => {
        if (own.signal.aborted) return;
        const goesOn = page.rows.length === 0 && page.next !== undefined && Date.now() - began < goOnSeconds * 1000;
        setState((old) => {
          const added = isFresh ? { rows: page.rows, dropped: 0 } : addPage(old.rows, page.rows);
          return {
            rows: added.rows,
            dropped: isFresh ? 0 : old.dropped + added.dropped,
            scanned: (isFresh ? 0 : old.scanned) + (page.scanned ?? page.rows.length),
            pages: isFresh ? 1 : old.pages + 1,
            next: page.next,
            loading: goesOn,
          };
        });
        if (goesOn) load(page.next!, false, began);
      },
      (error: unknown) => {
        if (own.signal.aborted) return;
        setState((old) => ({ ...old, loading: false, problem: error instanceof Problem ? error : new Problem(0, "page", String(error)) }));
      },
    );
  }

  useEffect(() => {
    setState(empty);
    load("", true);
    return () => aborter.current?.abort();
  }, [key]);
  useEffect(() => {
    if (!everySeconds) return;
    const timer = setInterval(() => {
      if (!document.hidden && now.current.pages <= 1 && !now.current.loading) load("", true);
    }, everySeconds * 1000);
    return () => clearInterval(timer);
  }, [key, everySeconds]);

  return {
    rows: state.rows,
    dropped: state.dropped,
    scanned: state.scanned,
    more: state.next !== undefined,
    loading: state.loading,
    problem: state.problem,
    load: () => state.next !== undefined && load(state.next, false),
    restart: () => load("", true),
  };
}
