/** The table of queues, of the overview and of the screen of queues. */
import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";

import { count, duration, rate } from "../format";
import { queues, type QueueRow } from "../live";
import { navigate, query, setQuery, to } from "../router";
import { may } from "../session";
import { openRedrive } from "../actions/redrive";
import { openDelete, openPurge, setPaused } from "../actions/queues";
import { Badge, Button } from "./basics";
import { Sparkline } from "./chart";
import { FilterBox } from "./field";
import { DataTable, type Column } from "./table";
import { toast } from "./toast";

const COLUMNS: Column<QueueRow>[] = [
  {
    id: "name",
    title: "Queue",
    name: true,
    sort: (row) => row.name,
    cell: (row) => (
      <>
        <a href={to(["queues", row.name])}>{row.name}</a> {row.paused && <Badge tone="warn">paused</Badge>}
      </>
    ),
  },
  { id: "ready", title: "Ready", num: true, width: "80px", sort: (row) => row.ready, cell: (row) => count(row.ready) },
  { id: "in_flight", title: "In flight", num: true, width: "86px", sort: (row) => row.inFlight, cell: (row) => count(row.inFlight) },
  { id: "delayed", title: "Delayed", num: true, width: "86px", sort: (row) => row.delayed, cell: (row) => count(row.delayed) },
  { id: "in", title: "In/s", num: true, width: "66px", sort: (row) => row.inRate, cell: (row) => rate(row.inRate) },
  { id: "out", title: "Out/s", num: true, width: "72px", sort: (row) => row.outRate, cell: (row) => rate(row.outRate) },
  { id: "age", title: "Oldest", num: true, width: "96px", sort: (row) => row.oldestAge ?? -1, cell: (row) => duration(row.oldestAge) },
  { id: "recent", title: "Last minute", width: "120px", cell: (row) => <Sparkline values={row.recent} slots={60} /> },
];

function redriveOf(row: QueueRow): void {
  const isDead = [...queues.peek().values()].some((each) => each.dlq === row.name);
  if (isDead || row.dlq) openRedrive({ queues: [isDead ? row.name : row.dlq!] });
  else toast(`${row.name} has no dead-letter queue.`, "bad");
}

export function filterQueues(rows: Iterable<QueueRow>, text: string): QueueRow[] {
  const wanted = text.toLowerCase();
  return [...rows].filter((row) => row.name.toLowerCase().includes(wanted));
}

/** Pause, purge and delete, in the row. */
const ACTIONS: Column<QueueRow> = {
  id: "actions",
  title: "Actions",
  width: "200px",
  cell: (row) =>
    may("manage", row.name) && (
    <span class="row nowrap-row">
      <Button small kind="quiet" onClick={() => void setPaused(row.name, !row.paused)} aria-label={`${row.paused ? "Resume" : "Pause"} ${row.name}`}>
        {row.paused ? "Resume" : "Pause"}
      </Button>
      <Button small kind="quiet" onClick={() => openPurge(row.name)} aria-label={`Purge ${row.name}`}>
        Purge…
      </Button>
      <Button small kind="quiet" onClick={() => openDelete(row.name)} aria-label={`Delete ${row.name}`}>
        Delete…
      </Button>
    </span>
  ),
};

export function QueueTable({ empty, actions }: { empty?: ComponentChildren; actions?: boolean }) {
  const text = query.value.get("filter") ?? "";
  const sort = query.value.get("sort") ?? "name";
  const all = queues.value;
  const rows = useMemo(() => filterQueues(all.values(), text), [all, text]);
  return (
    <section class="card" aria-label="Queues">
      <header>
        <h2>
          Queues <span class="soft">{text ? `${count(rows.length)} of ${count(all.size)}` : count(all.size)}</span>
        </h2>
        <FilterBox label="Filter by name" value={text} onValue={(filter) => setQuery({ filter })} />
      </header>
      <DataTable
        caption="Queues with their messages and rates"
        columns={actions ? [...COLUMNS, ACTIONS] : COLUMNS}
        rows={rows}
        rowKey={(row) => row.name}
        rowHref={(row) => to(["queues", row.name])}
        rowKeys={[
          { keys: "p", what: "Peek into the queue", run: (row) => navigate(to(["queues", row.name, "messages"])) },
          ...(may("manage") ? [{ keys: "r", what: "Redrive the dead letters of the queue", run: redriveOf }] : []),
        ]}
        sort={sort}
        onSort={(next) => setQuery({ sort: next === "name" ? undefined : next })}
        empty={empty ?? <p class="state">No queue has “{text}” in its name.</p>}
      />
    </section>
  );
}
