/** The messages of a queue: by state, past ones, searched; selected and changed; one opened beside the table. */
import { useEffect, useMemo, useState } from "preact/hooks";

import { openCancel, openDelay, openMove } from "../actions/messages";
import { call, requestOf } from "../api/client";
import { cliLine, curlLine } from "../api/lines";
import type { MessageView, QueueView } from "../api/schema";
import { Button, Choice, Empty, Failed, LinkButton, Loading, Notice } from "../components/basics";
import { CopyLine } from "../components/code";
import { MessageDetail } from "../components/message_detail";
import { messageColumns, rowKey, type Row } from "../components/message_table";
import { DataTable } from "../components/table";
import { count, plural } from "../format";
import { useLoad } from "../load";
import { parseSearch, searchOptions } from "../messages/search_syntax";
import { readSelection, writeSelection } from "../messages/selection";
import { usePages, type Page } from "../messages/pages";
import { query, setQuery, to } from "../router";
import { may } from "../session";
import { SearchBox } from "./search_box";
import type { TabProps } from "./queue";

const STATES = [
  ["ready", "Ready"],
  ["delayed", "Delayed"],
  ["in_flight", "In flight"],
  ["all", "All"],
  ["history", "History"],
] as const;
type Shown = (typeof STATES)[number][0];
const NONE = new Set<string>();
const LIMIT = 100;
const BUDGET = 1;
const GO_ON = 10;
const HISTORY_SPANS = [
  ["1h", "1 h", 3600],
  ["24h", "24 h", 86_400],
  ["7d", "7 d", 604_800],
  ["all", "All", 0],
] as const;

function stateOf(): Shown {
  const given = query.value.get("state");
  return STATES.find(([id]) => id === given)?.[0] ?? "ready";
}

export function QueueMessages({ queue }: TabProps) {
  const name = queue.name;
  const state = stateOf();
  const text = query.value.get("q") ?? "";
  const openId = query.value.get("id") ?? "";
  const span = query.value.get("span") ?? "1h";
  const maySelect = may("manage", name) && state !== "history";
  const [chosen, setChosen] = useState<Set<string>>(() => selectionOf(name));
  const selected = maySelect ? chosen : NONE;
  const parsed = useMemo(() => parseSearch(text), [text]);
  const searches = text.trim() !== "" && state !== "history";
  // Without the part that is not understood it would be another search.
  const unreadable = searches && parsed.problems.length > 0;
  const pages = usePages<Row>((after, signal) => unreadable ? Promise.resolve({ rows: [] }) : readPage(name, state, searches, parsed.filter, span, after, signal), [name, state, text, span], {
    everySeconds: searches || state === "history" || selected.size > 0 ? undefined : 2,
    goOnSeconds: searches ? GO_ON : 0,
  });
  useEffect(() => setChosen(selectionOf(name)), [name, state, text]);
  const open = (row: Row) => setQuery({ id: row.id });
  const hasReasons = pages.rows.some((row) => row.reason);
  const isBare = !pages.rows.some((row) => row.message_type || row.group || Object.keys(row.attributes).length > 0);
  const columns = useMemo(() => messageColumns({ open, due: state === "delayed", lease: state === "in_flight", state: state === "all" || searches, past: state === "history", reasons: hasReasons, bare: isBare, narrow: openId !== "" }), [state, searches, hasReasons, isBare, openId !== ""]);
  const ids = idsOf(selected);
  const shown = new Set(pages.rows.map(rowKey));
  const unseen = pages.loading ? 0 : [...selected].filter((key) => !shown.has(key)).length;
  const total = totalOf(queue, state);
  const past = state === "history" ? pages.rows.find((row) => row.id === openId) : undefined;
  return (
    <div class={`split ${openId ? "open" : ""}`}>
      <section class="card" aria-label="Messages">
        <div class="toolbar">
          <Choice label="State" value={state} options={STATES} onChange={(next) => setQuery({ state: next === "ready" ? undefined : next, id: undefined, selected: undefined })} />
          {state === "history" ? (
            <Choice label="Published in the last" value={span} options={HISTORY_SPANS.map(([id, title]) => [id, title] as const)} onChange={(next) => setQuery({ span: next === "1h" ? undefined : next })} />
          ) : null}
          <span class="row end grow">
            <Button small onClick={pages.restart} disabled={pages.loading}>
              Reload
            </Button>
            {may("send", name) && (
              <LinkButton small kind="primary" href={to(["queues", name, "send"])}>
                Send message
              </LinkButton>
            )}
          </span>
        </div>
        {state !== "history" && (
          <div class="toolbar">
            <SearchBox text={text} problems={parsed.problems} onSearch={(next) => setQuery({ q: next, id: undefined, selected: undefined })} />
          </div>
        )}
        {selected.size > 0 && (
          <div class="toolbar selection" role="status">
            <b>{count(selected.size)} selected</b>
            {unseen > 0 && <span class="soft">{count(unseen)} not in these rows</span>}
            <Button small onClick={() => openMove({ queue: name, ids, done: changed })}>
              Move…
            </Button>
            <Button small onClick={() => openDelay({ queue: name, ids, done: changed })}>
              Delay…
            </Button>
            <Button small onClick={() => openCancel({ queue: name, ids, done: changed })}>
              Cancel…
            </Button>
            {ids.length === 1 && (
              <LinkButton small href={to(["queues", name, "send"], { from: ids[0] })}>
                Edit and send a copy
              </LinkButton>
            )}
            <Button small kind="quiet" onClick={() => select(NONE)}>
              Clear
            </Button>
          </div>
        )}
        {pages.problem && <Failed problem={pages.problem} again={pages.restart} />}
        {!pages.problem && pages.rows.length === 0 && pages.loading ? (
          <Loading lines={8} />
        ) : (
          <DataTable
            caption={`Messages of ${name}`}
            columns={columns}
            rows={pages.rows}
            rowKey={rowKey}
            fixed
            onOpen={open}
            rowKeys={[{ keys: "p", what: "Peek into the message", run: open }]}
            current={openId ? `${name}/${openId}` : undefined}
            selected={selected}
            onSelect={maySelect ? select : undefined}
            empty={pages.problem ? <></> : unreadable ? <Empty title="Nothing was searched" /> : <Nothing state={state} searches={searches} more={pages.more} name={name} />}
          />
        )}
        <footer class="toolbar">
          <span class="soft" aria-live="polite">
            {unreadable ? "" : searches ? `Searched ${count(pages.scanned)}${total === undefined ? "" : ` of ${count(Math.max(total, pages.scanned))}`} messages, ${count(pages.rows.length)} found` : `${plural(pages.rows.length, "message")} shown${total === undefined ? "" : ` of ${count(total)}`}`}
            {pages.dropped > 0 && `; ${count(pages.dropped)} earlier ones left the page`}
            {searches && !unreadable && ` (${GO_ON} s of search at a time)`}
          </span>
          {pages.more && (
            <Button small onClick={pages.load} disabled={pages.loading}>
              {pages.loading ? "Working…" : searches ? "Continue" : "Load more"}
            </Button>
          )}
          {pages.dropped > 0 && (
            <Button small onClick={pages.restart}>
              From the start
            </Button>
          )}
          <details>
            <summary>Copy as a command</summary>
            <div class="stack tight">
              <CopyLine text={cliOf(name, state, searches, text, span)} />
              <CopyLine text={curlLine(requestFor(name, state, searches, parsed.filter, span, ""))} />
            </div>
          </details>
        </footer>
      </section>
      {openId && (past ? <MessageDetail queue={name} message={past} onClose={close} /> : <OpenMessage queue={name} id={openId} reload={changed} />)}
    </div>
  );

  function idsOf(keys: Set<string>): string[] {
    return [...keys].map((key) => key.slice(name.length + 1));
  }
  /** Too many for an address are selected all the same; the address then has none of them. */
  function select(keys: Set<string>): void {
    setChosen(keys);
    setQuery({ selected: writeSelection(idsOf(keys)) });
  }
  function changed(): void {
    select(NONE);
    pages.restart();
  }
}

/** The rows that the address selects, by their keys. */
function selectionOf(queue: string): Set<string> {
  return new Set(readSelection(query.peek().get("selected")).map((id) => rowKey({ queue, id })));
}

function close(): void {
  setQuery({ id: undefined });
}

function OpenMessage({ queue, id, reload }: { queue: string; id: string; reload: () => void }) {
  const loaded = useLoad((signal) => call("show_message", { queue, id }, undefined, signal), [queue, id]);
  // The same object while nothing changed: a body is not decoded again.
  if (loaded.value) return <MessageDetail key={id} queue={queue} message={loaded.value} onClose={close} reload={() => (loaded.reload(), reload())} />;
  return (
    <section class="card detail" aria-label={`Message ${id}`}>
      {loaded.problem ? (
        <div class="pane">
          <Notice tone="warn">It is no longer in this queue. {loaded.problem.message}</Notice>
          <div class="row">
            <LinkButton href={to(["messages", id], { queue })}>What happened to it</LinkButton>
            <Button onClick={close}>Close</Button>
          </div>
        </div>
      ) : (
        <Loading />
      )}
    </section>
  );
}

function Nothing({ state, searches, more, name }: { state: Shown; searches: boolean; more: boolean; name: string }) {
  if (searches) return <Empty title={more ? "Nothing found so far" : "No message matches"}>{more && <p>Continue to search the rest of the queue.</p>}</Empty>;
  const words: Record<Shown, string> = { ready: "No message is ready", delayed: "No message is delayed", in_flight: "No message is in flight", all: "The queue is empty", history: "No message was published in this time" };
  return (
    <Empty title={words[state]}>
      {state !== "history" && (
        <p>
          Past messages are in the <a href={to(["queues", name, "messages"], { state: "history" })}>history</a>.
        </p>
      )}
    </Empty>
  );
}

function totalOf(queue: QueueView, state: Shown): number | undefined {
  const { ready, delayed, in_flight: inFlight } = queue.stats;
  if (state === "history") return undefined;
  return state === "ready" ? ready : state === "delayed" ? delayed : state === "in_flight" ? inFlight : ready + delayed + inFlight;
}

type Filter = ReturnType<typeof parseSearch>["filter"];

function sinceOf(span: string): string | undefined {
  const seconds = HISTORY_SPANS.find(([id]) => id === span)?.[2];
  return seconds ? new Date(Date.now() - seconds * 1000).toISOString() : undefined;
}

function searchBody(state: Shown, filter: Filter, after: string) {
  return { ...filter, state: filter.state ?? (state === "history" ? ("all" as const) : state), limit: LIMIT, budget: BUDGET, after };
}

function requestFor(queue: string, state: Shown, searches: boolean, filter: Filter, span: string, after: string) {
  if (searches) return requestOf("search", { queue }, searchBody(state, filter, after));
  if (state === "history") return requestOf("list_past", { queue, since: sinceOf(span), after_seq: after ? Number(after) : undefined, limit: LIMIT });
  return requestOf("browse", { queue, state, limit: LIMIT, after });
}

function cliOf(queue: string, state: Shown, searches: boolean, text: string, span: string): string {
  const { filter } = parseSearch(text);
  if (searches) return cliLine("search", queue, filter.text, ...searchOptions({ ...filter, state: filter.state ?? (state === "history" ? "all" : state) }));
  return state === "history" ? cliLine("replay", queue, ...(span === "all" ? [] : ["--since", span]), "--dry-run") : cliLine("search", queue, state !== "all" && "--state", state !== "all" && state);
}

async function readPage(queue: string, state: Shown, searches: boolean, filter: Filter, span: string, after: string, signal: AbortSignal): Promise<Page<Row>> {
  const own = (message: MessageView): Row => ({ ...message, queue });
  if (searches) {
    const found = await call("search", { queue }, searchBody(state, filter, after), signal);
    return { rows: found.messages.map(own), next: found.next, scanned: found.scanned };
  }
  if (state === "history") {
    const found = await call("list_past", { queue, since: sinceOf(span), after_seq: after ? Number(after) : undefined, limit: LIMIT }, undefined, signal);
    const rows = found.messages.map((each) => own({ ...each, group: each.group ?? undefined, timestamp: each.time, status: "past", receive_count: 0, state: "past" }));
    return { rows, next: found.next_seq === undefined ? undefined : String(found.next_seq) };
  }
  const page = await call("browse", { queue, state, limit: LIMIT, after }, undefined, signal);
  return { rows: page.messages.map(own), next: page.next };
}
