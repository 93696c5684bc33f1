/** A search over all queues that the user may peek, a share of the time for each, and a way to continue. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { call, Problem } from "../api/client";
import { cliLine } from "../api/lines";
import { Button, Empty, Failed, Notice, PageHead, Progress } from "../components/basics";
import { CopyLine } from "../components/code";
import { messageColumns, rowKey, type Row } from "../components/message_table";
import { DataTable } from "../components/table";
import { count, plural } from "../format";
import { connected, queues } from "../live";
import { parseSearch, searchOptions } from "../messages/search_syntax";
import { navigate, query, setQuery, to } from "../router";
import { SearchBox } from "./search_box";
import "../styles/queue.css";

const LIMIT = 50;
const BUDGET = 1;
const MAX_ROWS = 500;

interface Place {
  queue: string;
  after: string;
}

interface State {
  rows: Row[];
  left: Place[];
  total: number;
  scanned: number;
  running: boolean;
  refused: number;
  problem?: Problem;
}

export default function Search() {
  const text = query.value.get("text") ?? "";
  const parsed = useMemo(() => parseSearch(text), [text]);
  const [state, setState] = useState<State>({ rows: [], left: [], total: 0, scanned: 0, running: false, refused: 0 });
  const aborter = useRef<AbortController | undefined>(undefined);
  const isReady = connected.value !== undefined;
  const named = text ? [...queues.value.keys()].filter((name) => name.toLowerCase().includes(text.toLowerCase())).slice(0, 20) : [];

  /** Goes through the queues until there are enough rows, or every queue had its time once. */
  async function run(start: State): Promise<void> {
    aborter.current?.abort();
    const own = new AbortController();
    aborter.current = own;
    let now: State = { ...start, running: true };
    const wanted = now.rows.length + LIMIT;
    const turns = now.left.length;
    for (let turn = 0; turn < turns && now.rows.length < wanted && now.rows.length < MAX_ROWS; turn += 1) {
      const [place, ...left] = now.left;
      if (!place) break;
      try {
        const found = await call("search", { queue: place.queue }, { ...parsed.filter, limit: LIMIT, budget: BUDGET, after: place.after }, own.signal);
        const rows = found.messages.map((message) => ({ ...message, queue: place.queue }));
        now = { ...now, rows: [...now.rows, ...rows], scanned: now.scanned + found.scanned, left: found.next ? [...left, { queue: place.queue, after: found.next }] : left };
      } catch (error) {
        if (own.signal.aborted) return;
        // A queue that was deleted, or that the user may not peek, is left out.
        if (error instanceof Problem && (error.status === 403 || error.status === 404)) now = { ...now, left, refused: now.refused + 1 };
        else return setState({ ...now, running: false, problem: error instanceof Problem ? error : new Problem(0, "page", String(error)) });
      }
      if (own.signal.aborted) return;
      setState(now);
    }
    setState({ ...now, running: false });
  }

  useEffect(() => {
    if (!isReady || text.trim() === "" || parsed.problems.length) {
      setState({ rows: [], left: [], total: 0, scanned: 0, running: false, refused: 0 });
      return;
    }
    // The fullest queues first would hide small ones behind a long search: by name.
    const left = [...queues.peek().values()].filter((row) => row.ready + row.delayed + row.inFlight > 0).map((row) => ({ queue: row.name, after: "" })).sort((a, b) => (a.queue < b.queue ? -1 : 1));
    void run({ rows: [], left, total: left.length, scanned: 0, running: true, refused: 0 });
    return () => aborter.current?.abort();
  }, [text, isReady]);

  const open = (row: Row) => navigate(to(["messages", row.id], { queue: row.queue }));
  const columns = useMemo(() => messageColumns({ open, queue: true, state: true }), []);
  return (
    <div class="stack">
      <PageHead title="Search" />
      <section class="card" aria-label="Search over all queues">
        <div class="toolbar">
          <SearchBox text={text} problems={parsed.problems} onSearch={(next) => setQuery({ text: next })} />
        </div>
        {named.length > 0 && (
          <div class="toolbar">
            <span class="soft">Queues:</span>
            {named.map((name) => (
              <a key={name} href={to(["queues", name])}>
                {name}
              </a>
            ))}
          </div>
        )}
        {state.running && <Progress done={state.total - state.left.length} total={state.total} />}
        {state.problem ? (
          <Failed problem={state.problem} again={() => void run({ ...state, problem: undefined })} />
        ) : (
          <DataTable caption="Messages found" columns={columns} rows={state.rows} rowKey={rowKey} fixed onOpen={open} empty={<Nothing text={text} running={state.running} more={state.left.length > 0} />} />
        )}
        <footer class="toolbar">
          <span class="soft" aria-live="polite">
            {text && `Searched ${plural(state.scanned, "message")} in ${count(state.total - state.left.length)} of ${plural(state.total, "queue")}, ${count(state.rows.length)} found (${BUDGET} s for each queue at a time)`}
          </span>
          {state.left.length > 0 && !state.running && state.rows.length < MAX_ROWS && (
            <Button small onClick={() => void run(state)}>
              Continue
            </Button>
          )}
          {state.running && (
            <Button
              small
              onClick={() => {
                aborter.current?.abort();
                setState({ ...state, running: false });
              }}
            >
              Stop
            </Button>
          )}
        </footer>
      </section>
      {state.refused > 0 && <Notice>{plural(state.refused, "queue")} could not be searched: you may not see the messages, or the queue is gone.</Notice>}
      {text && (
        <details>
          <summary>Copy as a command</summary>
          <CopyLine text={cliLine("search", "QUEUE", parsed.filter.text, ...searchOptions(parsed.filter))} />
        </details>
      )}
    </div>
  );
}

function Nothing({ text, running, more }: { text: string; running: boolean; more: boolean }) {
  if (!text) {
    return (
      <Empty title="Search the messages of all queues">
        <p>Words are text in the body. Also: colour:red, type:order, reason:timeout, body.order.total=12, age&gt;10m, deliveries&gt;=3.</p>
      </Empty>
    );
  }
  return <Empty title={running ? "Searching…" : more ? "Nothing found so far" : "No message matches"} />;
}
