/** The data pipeline on Spark: results, who reads how far, what is open, and how each job is started. */
import { call, requestOf } from "../api/client";
import { cliLine } from "../api/lines";
import type { CursorView, Stage, SubscriptionView } from "../api/schema";
import { Badge, Button, Card, Empty, PageHead, Show, Time } from "../components/basics";
import { CopyLine } from "../components/code";
import { openAction } from "../components/dialog";
import { DataTable, type Column } from "../components/table";
import { bytes, count, duration, plural } from "../format";
import { useLoad } from "../load";
import { to } from "../router";
import { may, maySeeServer } from "../session";
import { Results } from "./pipeline_results";
import "../styles/admin.css";

export default function Pipeline() {
  return (
    <div class="stack">
      <PageHead title="Pipeline" />
      <Results />
      {maySeeServer() && <Cursors />}
      <Subscriptions />
      <Stages />
      <Jobs />
    </div>
  );
}

function Cursors() {
  const loaded = useLoad((aborted) => call("list_cursors", {}, undefined, aborted), [], 3);
  return (
    <Card title="Cursors" flush>
      <Show of={loaded} lines={2}>
        {({ cursors }) => (
          <DataTable
            caption="Cursors"
            columns={cursorColumns(loaded.reload)}
            rows={cursors}
            rowKey={(row) => row.name}
            sort="-lag_bytes"
            empty={
              <Empty title="No cursors">
                <p>A job that reads the history continuously has a cursor: the server keeps the journal until the job has read it.</p>
              </Empty>
            }
          />
        )}
      </Show>
    </Card>
  );
}

function cursorColumns(reload: () => void): Column<CursorView>[] {
  return [
    { id: "name", title: "Cursor", name: true, sort: (row) => row.name, cell: (row) => row.name },
    {
      id: "state",
      title: "State",
      sort: (row) => Number(row.lost),
      cell: (row) =>
        row.lost ? (
          <Badge tone="bad" title={row.detail}>
            ✕ journal dropped
          </Badge>
        ) : (
          <Badge tone="good" title={row.detail}>
            held
          </Badge>
        ),
    },
    { id: "lag_bytes", title: "Lag", num: true, sort: (row) => row.lag_bytes, cell: (row) => bytes(row.lag_bytes) },
    { id: "lag_s", title: "Lag in time", num: true, sort: (row) => row.lag_s, cell: (row) => duration(row.lag_s) },
    { id: "hold", title: "Held at most", num: true, cell: (row) => [row.hold_bytes > 0 && bytes(row.hold_bytes), row.hold_s > 0 && duration(row.hold_s)].filter(Boolean).join(", ") || "no limit" },
    { id: "owner", title: "User", sort: (row) => row.owner, cell: (row) => row.owner || "–" },
    { id: "moved", title: "Moved", num: true, sort: (row) => row.moved, cell: (row) => <Time at={row.moved} ago /> },
    {
      id: "actions",
      title: "Action",
      num: true,
      cell: (row) =>
        may("manage") ? (
          <Button small aria-label={`Remove cursor ${row.name}`} onClick={() => openRemoveCursor(row, reload)}>
            Remove…
          </Button>
        ) : null,
    },
  ];
}

function openRemoveCursor(cursor: CursorView, done: () => void): void {
  openAction({
    title: `Remove cursor ${cursor.name}`,
    verb: "Remove",
    danger: true,
    body: () => <p>The journal is no longer kept for it: {bytes(cursor.lag_bytes)} that its job has not read may be dropped. Messages in queues are not touched.</p>,
    request: () => requestOf("delete_cursor", { name: cursor.name }),
    cli: () => cliLine("pipeline", "cursors", "rm", cursor.name),
    run: async () => {
      await call("delete_cursor", { name: cursor.name });
      return `Cursor ${cursor.name} is removed.`;
    },
    done,
  });
}

function Subscriptions() {
  const loaded = useLoad((aborted) => call("list_subscriptions", {}, undefined, aborted), [], 3);
  return (
    <Card title="Subscriptions" flush>
      <Show of={loaded} lines={2}>
        {({ subscriptions }) => (
          <DataTable
            caption="Subscriptions"
            columns={subscriptionColumns(loaded.reload)}
            rows={subscriptions}
            rowKey={(row) => `${row.queue} ${row.name}`}
            sort="name"
            empty={
              <Empty title="No subscriptions">
                <p>A job that consumes a queue in batches has a subscription. A batch stays the same until it is acknowledged.</p>
              </Empty>
            }
          />
        )}
      </Show>
    </Card>
  );
}

function subscriptionColumns(reload: () => void): Column<SubscriptionView>[] {
  return [
    { id: "name", title: "Subscription", name: true, sort: (row) => row.name, cell: (row) => row.name },
    { id: "queue", title: "Queue", sort: (row) => row.queue, cell: (row) => <a href={to(["queues", row.queue])}>{row.queue}</a> },
    { id: "batches", title: "Open batches", num: true, sort: (row) => row.batches.length, cell: (row) => count(row.batches.length) },
    { id: "messages", title: "Messages", num: true, sort: (row) => row.messages, cell: (row) => count(row.messages) },
    { id: "bytes", title: "Size", num: true, cell: (row) => bytes(row.batches.reduce((sum, batch) => sum + batch.bytes, 0)) },
    { id: "lease", title: "Lease", num: true, sort: (row) => row.lease_s, cell: (row) => duration(row.lease_s) },
    { id: "until", title: "First lease ends", num: true, cell: (row) => firstEnd(row) },
    { id: "owner", title: "User", sort: (row) => row.owner, cell: (row) => row.owner || "–" },
    {
      id: "actions",
      title: "Action",
      num: true,
      cell: (row) =>
        may("manage") ? (
          <Button small aria-label={`End subscription ${row.name}`} onClick={() => openEnd(row, reload)}>
            End…
          </Button>
        ) : null,
    },
  ];
}

function firstEnd(row: SubscriptionView) {
  const ends = row.batches.map((batch) => batch.lease_until).sort();
  return ends[0] ? <Time at={ends[0]} ago /> : "–";
}

function openEnd(subscription: SubscriptionView, done: () => void): void {
  openAction({
    title: `End subscription ${subscription.name}`,
    verb: "End the subscription",
    danger: true,
    body: () => (
      <p>
        {subscription.messages === 1 ? "1 message of its batches returns" : `${plural(subscription.messages, "message")} of its batches return`} to {subscription.queue}, counted as a delivery.
      </p>
    ),
    request: () => requestOf("delete_subscription", { name: subscription.name }),
    cli: () => cliLine("pipeline", "subscriptions", "rm", subscription.name),
    run: async () => {
      const { messages } = await call("delete_subscription", { name: subscription.name });
      return `Subscription ${subscription.name} has ended; ${plural(messages, "message")} returned.`;
    },
    done,
  });
}

function Stages() {
  const loaded = useLoad((aborted) => call("list_stages", {}, undefined, aborted), [], 3);
  return (
    <Card title="Staged batches" flush>
      <Show of={loaded} lines={2}>
        {({ stages }) => (
          <DataTable
            caption="Staged batches"
            columns={stageColumns(loaded.reload)}
            rows={stages}
            rowKey={(row) => `${row.job} ${row.batch}`}
            empty={
              <Empty title="No staged batches">
                <p>A job that writes to queues uploads the parts of a batch first. They become messages together, when the batch is committed.</p>
              </Empty>
            }
          />
        )}
      </Show>
    </Card>
  );
}

function stageColumns(reload: () => void): Column<Stage>[] {
  return [
    { id: "job", title: "Job", name: true, sort: (row) => row.job, cell: (row) => row.job },
    { id: "batch", title: "Batch", num: true, sort: (row) => row.batch, cell: (row) => row.batch },
    { id: "state", title: "State", cell: (row) => (row.committed ? <Badge tone="good">committed</Badge> : <Badge tone="accent">uploading</Badge>) },
    { id: "parts", title: "Parts", num: true, sort: (row) => row.parts, cell: (row) => count(row.parts) },
    { id: "bytes", title: "Size", num: true, sort: (row) => row.bytes, cell: (row) => bytes(row.bytes) },
    { id: "updated", title: "Updated", num: true, sort: (row) => row.updated, cell: (row) => <Time at={row.updated} ago /> },
    {
      id: "actions",
      title: "Action",
      num: true,
      cell: (row) =>
        may("manage") && !row.committed ? (
          <Button small aria-label={`Discard batch ${row.batch} of ${row.job}`} onClick={() => openAbort(row, reload)}>
            Discard…
          </Button>
        ) : null,
    },
  ];
}

function openAbort(stage: Stage, done: () => void): void {
  const params = { job: stage.job, batch: String(stage.batch) };
  openAction({
    title: `Discard batch ${stage.batch} of ${stage.job}`,
    verb: "Discard the parts",
    danger: true,
    body: () => (
      <p>
        {plural(stage.parts, "uploaded part")} ({bytes(stage.bytes)}) {stage.parts === 1 ? "is" : "are"} deleted. None of it is in a queue. The job uploads the batch again if it is started again.
      </p>
    ),
    request: () => requestOf("abort_batch", params),
    run: async () => {
      const { committed } = await call("abort_batch", params);
      return committed ? "The batch was committed meanwhile: its messages are in their queues." : "The parts are deleted.";
    },
    done,
  });
}

/** The jobs of docs/PIPELINE.md, for this server. */
function jobLines(url: string): [string, string, string][] {
  const at = ["--url", url];
  return [
    ["Archive", "The history as Parquet files, each row once. Start it again at any time.", cliLine("pipeline", "archive", "run", ...at, "--archive", "./archive")],
    ["Analytics", "Rates, waiting times and failures of each queue and window, shown above; --open shows the report.", cliLine("pipeline", "analytics", ...at, "--publish")],
    ["Triage", "Dead letters by cause, with samples and advice.", cliLine("pipeline", "triage", ...at, "--publish", "--html", "dead.html")],
    ["Redrive", "Dead letters that match an SQL condition, back to their queues.", cliLine("pipeline", "redrive", "orders-dead", "--where", "error_type = 'TimeoutError'", "--rate", 50, "--dry-run", ...at)],
    ["Replay", "Messages of the past, published again.", cliLine("pipeline", "replay", "--from", "orders", "--since", "2h", "--to", "orders-again", "--dry-run", ...at)],
    ["SQL", "A pipeline in one statement.", cliLine("pipeline", "sql", "SELECT queue, count(*) FROM queue(*) GROUP BY queue", ...at)],
    ["Load", "Rows of files as messages.", cliLine("pipeline", "load", "orders.jsonl", "--to", "orders", ...at)],
    ["Export", "The history of a queue as files.", cliLine("pipeline", "export", "orders", "--to", "out", "--format", "parquet", ...at)],
    ["Project", "A declarative pipeline with queues as sources and sinks.", `${cliLine("pipeline", "init", "bills", "--from", "orders", "--to", "bills", ...at)} && ${cliLine("pipeline", "run", "bills", ...at)}`],
  ];
}

function Jobs() {
  return (
    <Card title="Start a job">
      <div class="stack">
        <p class="soft">Jobs run where you start them, with Spark on that machine or on a cluster (--master). Those with --dry-run here only show what they would do. On a server with users, set OPENQ_TOKEN_FILE.</p>
        {jobLines(location.origin).map(([name, what, line]) => (
          <div class="stack tight" key={name}>
            <h3>{name}</h3>
            <p class="soft">{what}</p>
            <CopyLine text={line} />
          </div>
        ))}
      </div>
    </Card>
  );
}
