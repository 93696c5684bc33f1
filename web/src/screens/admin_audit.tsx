/** The audit log: who changed what, from where, newest first. */
import { useEffect, useState } from "preact/hooks";

import { call } from "../api/client";
import { cliLine } from "../api/lines";
import type { AuditView } from "../api/schema";
import { Badge, Button, Card, Empty, Show, Time } from "../components/basics";
import { CopyLine } from "../components/code";
import { SelectField, TextField } from "../components/field";
import { DataTable, type Column } from "../components/table";
import { useLoad } from "../load";
import { query, setQuery, to } from "../router";

const PAGE = 100;
const OUTCOMES = [
  ["", "All"],
  ["ok", "ok"],
  ["refused", "refused"],
  ["failed", "failed"],
  ["unknown", "unknown"],
] as const;
type Outcome = (typeof OUTCOMES)[number][0];

const SPANS = [
  ["", "All"],
  ["3600", "Last hour"],
  ["86400", "Last day"],
  ["604800", "Last week"],
  ["2592000", "Last 30 days"],
] as const;
type Span = (typeof SPANS)[number][0];

export function AuditLog() {
  const asked = query.value;
  const [user, action, target] = ["user", "action", "target"].map((name) => asked.get(name) ?? "") as [string, string, string];
  const outcome = (asked.get("outcome") ?? "") as Outcome;
  const since = (asked.get("since") ?? "") as Span;
  const before = Number(asked.get("before")) || undefined;
  const loaded = useLoad(
    (aborted) =>
      call(
        "list_audit",
        {
          newest: true,
          limit: PAGE,
          before,
          user: user || undefined,
          action: action || undefined,
          target: target || undefined,
          outcome: outcome || undefined,
          since: Number(since) > 0 ? new Date(Date.now() - Number(since) * 1000).toISOString() : undefined,
        },
        undefined,
        aborted,
      ),
    [user, action, target, outcome, since, before],
    before ? undefined : 5,
  );
  const isFiltered = Boolean(user || action || target || outcome || since);
  // Another filter begins at the newest record.
  const set = (changes: Record<string, string>) => setQuery({ ...changes, before: undefined });
  return (
    <div class="stack audit">
      <Card label="Filter">
        <div class="form-grid filters">
          <ExactField label="User" value={user} onValue={(value) => set({ user: value })} />
          <ExactField label="Action" placeholder="delete_queue" value={action} onValue={(value) => set({ action: value })} />
          <ExactField label="Target" placeholder="a queue or user" value={target} onValue={(value) => set({ target: value })} />
          <SelectField label="Outcome" value={outcome} options={OUTCOMES} onValue={(value) => set({ outcome: value })} />
          <SelectField label="Time" value={since} options={SPANS} onValue={(value) => set({ since: value })} />
        </div>
      </Card>
      <Card
        title="Audit log"
        flush
        actions={
          <>
            {isFiltered && (
              <Button small onClick={() => set({ user: "", action: "", target: "", outcome: "", since: "" })}>
                Clear the filter
              </Button>
            )}
            {before && (
              <Button small onClick={() => setQuery({ before: undefined })}>
                Newest
              </Button>
            )}
            <Button small disabled={(loaded.value?.records.length ?? 0) < PAGE} onClick={() => setQuery({ before: loaded.value?.records[0]?.number })}>
              Older
            </Button>
          </>
        }
      >
        <Show of={loaded}>
          {({ records }) => (
            <DataTable
              caption="Audit log"
              columns={COLUMNS}
              rows={[...records].reverse()}
              rowKey={(row) => String(row.number)}
              empty={<Empty title={isFiltered || before ? "No such records" : "Nothing is recorded yet"}>{<p>Logins, refused calls and every change of queues, users and settings are recorded here.</p>}</Empty>}
            />
          )}
        </Show>
      </Card>
      <Card title="On the command line">
        <div class="stack tight">
          <CopyLine text={cliLine("audit", "ls", user && "--by", user || undefined, action && "--action", action || undefined, target && "--target", target || undefined, outcome && "--outcome", outcome || undefined)} />
          <CopyLine text="openq audit verify" />
          <p class="soft">Each record holds the hash of the one before: verify shows whether a record was changed or removed.</p>
        </div>
      </Card>
    </div>
  );
}

/** The server compares whole words: it is asked when the typing pauses, not with each letter. */
function ExactField(props: { label: string; value: string; placeholder?: string; onValue: (value: string) => void }) {
  const [text, setText] = useState(props.value);
  useEffect(() => setText(props.value), [props.value]);
  useEffect(() => {
    if (text === props.value) return;
    const timer = setTimeout(() => props.onValue(text.trim()), 400);
    return () => clearTimeout(timer);
  }, [text]);
  return <TextField label={props.label} placeholder={props.placeholder} value={text} onValue={setText} type="search" />;
}

/** A value that filters by itself. */
function Only({ name, value }: { name: string; value: string }) {
  if (!value) return <>–</>;
  const asked = Object.fromEntries(query.value);
  return (
    <a class="nowrap" href={to(["admin", "audit"], { ...asked, [name]: value, before: undefined })} title={value}>
      {value}
    </a>
  );
}

function outcomeTone(outcome: string): "good" | "warn" | "bad" | undefined {
  return outcome === "ok" ? "good" : outcome === "refused" ? "warn" : outcome === "failed" ? "bad" : undefined;
}

const COLUMNS: Column<AuditView>[] = [
  { id: "number", title: "No.", num: true, cell: (row) => <span title={`hash ${row.hash}`}>{row.number}</span> },
  { id: "time", title: "Time", cell: (row) => <Time at={row.time} /> },
  { id: "user", title: "User", cell: (row) => <Only name="user" value={row.user} /> },
  { id: "action", title: "Action", cell: (row) => <Only name="action" value={row.action} /> },
  { id: "target", title: "Target", cut: true, cell: (row) => <Only name="target" value={row.target} /> },
  { id: "outcome", title: "Outcome", cell: (row) => <Badge tone={outcomeTone(row.outcome)}>{row.outcome}</Badge> },
  { id: "peer", title: "From", cell: (row) => <span class="nowrap">{[row.protocol, row.peer].filter(Boolean).join(" ")}</span> },
  { id: "detail", title: "Detail", cut: true, cell: (row) => <Detail of={row.detail} /> },
];

function Detail({ of }: { of: Record<string, unknown> }) {
  const text = Object.entries(of)
    .map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`)
    .join(", ");
  return <span title={text}>{text || "–"}</span>;
}
