/** Dead letters of all queues, grouped by reason: look at samples, redrive, discard, export. */
import { call } from "../api/client";
import type { ReasonGroup, ReasonGroups } from "../api/schema";
import { openDiscard } from "../actions/discard";
import { exportMessages } from "../actions/export";
import { openRedrive } from "../actions/redrive";
import { Badge, Button, Card, Choice, Empty, PageHead, Show, Time } from "../components/basics";
import { Bars } from "../components/bars";
import { FilterBox, SelectField } from "../components/field";
import { DataTable, type Column } from "../components/table";
import { TaskList } from "../components/task_list";
import { count, oneLine, plural } from "../format";
import { useLoad } from "../load";
import { query, setQuery, to } from "../router";
import { may } from "../session";
import { Samples } from "./dead_letter_samples";
import "../styles/dead_letters.css";

const SPANS = [
  ["1h", "1 h", 3600],
  ["24h", "24 h", 86_400],
  ["7d", "7 d", 604_800],
  ["30d", "30 d", 2_592_000],
] as const;
type Span = (typeof SPANS)[number][0];
const LIMIT = 200;

type GroupRow = ReasonGroup;

export default function DeadLetters() {
  const queue = query.value.get("queue") ?? "";
  const chosen = query.value.get("group");
  const match = query.value.get("match") ?? "";
  const given = query.value.get("span");
  const span = SPANS.find(([id]) => id === given) ?? SPANS[1];
  const loaded = useLoad((signal) => call("group_all_dead_letters", { queue, span: span[2], match, limit: LIMIT }, undefined, signal), [queue, span[0], match], 5);
  const known = useLoad((signal) => call("list_dead_queues", {}, undefined, signal), [], 30);
  return (
    <div class="stack">
      <PageHead title="Dead letters">{loaded.value && <span class="soft">{summaryOf(loaded.value)}</span>}</PageHead>
      {/* Where it is seen at once by who has just begun one. */}
      <TaskList kinds={["redrive", "discard"]} part="running" />
      <Show of={loaded} lines={6}>
        {(found) => {
          if (found.total === 0 && !match && !queue) return <NoDeadLetters />;
          const names = [...new Set([...(known.value?.queues.map((each) => each.queue) ?? []), queue])].filter(Boolean).sort();
          const rows = found.groups;
          const group = rows.find((each) => each.reason === chosen) ?? (rows.length === 1 ? rows[0] : undefined);
          return (
            <>
              <Card
                title="By reason"
                flush
                actions={
                  <>
                    <FilterBox label="Filter by reason" value={match} onValue={(value) => setQuery({ match: value })} />
                    <SelectField label="Queue" value={queue} options={[["", "All queues"], ...names.map((name) => [name, name] as const)]} onValue={(value) => setQuery({ queue: value, group: undefined })} />
                    <Choice<Span> label="Span of the trend" value={span[0]} options={SPANS.map(([id, title]) => [id, title] as const)} onChange={(next) => setQuery({ span: next === "24h" ? undefined : next })} />
                  </>
                }
              >
                <DataTable
                  caption="Dead letters by reason"
                  columns={columnsOf(span[1])}
                  rows={rows}
                  rowKey={(row) => row.reason}
                  fixed
                  rowHref={hrefOf}
                  current={group?.reason}
                  sort="-count"
                  rowKeys={[
                    { keys: "p", what: "Look at the group", run: (row) => setQuery({ group: row.reason }) },
                    ...(may("manage") ? [{ keys: "r", what: "Redrive the group", run: (row: GroupRow) => redrive(row, loaded.reload) }] : []),
                  ]}
                  empty={<p class="state">{match ? `No reason has “${match}” in it` : "There are no dead letters"}{queue && ` in ${queue}`}.</p>}
                />
              </Card>
              {!found.complete && <p class="soft">There are more dead letters than could be grouped in five seconds: {count(found.scanned)} were read, and the counts are of those.</p>}
              {found.matched > found.groups.length && <p class="soft">The {count(found.groups.length)} largest of {count(found.matched)} groups are shown.</p>}
              {group && <Selected group={group} reload={loaded.reload} />}
            </>
          );
        }}
      </Show>
      <TaskList kinds={["redrive", "discard"]} part="ended" />
    </div>
  );
}

function summaryOf(found: ReasonGroups): string {
  if (found.total === 0) return "none";
  const names = new Set(found.groups.flatMap((group) => group.queues.map((part) => part.queue)));
  return `${count(found.total)} in ${plural(names.size, "queue")}`;
}

function NoDeadLetters() {
  return (
    <Card>
      <Empty title="No dead letters">
        <p>
          A message becomes a dead letter when it fails <code>max_receives</code> times, or is rejected. A queue needs a dead-letter queue for it:
        </p>
        <p>
          <code>openq queue edit orders --dlq orders-dead --max-receives 5</code>
        </p>
      </Empty>
    </Card>
  );
}

function hrefOf(row: GroupRow): string {
  const { queue, match, span } = Object.fromEntries(query.value);
  return to(["dead-letters"], { queue, match, span, group: row.reason || undefined });
}

function columnsOf(span: string): Column<GroupRow>[] {
  return [
    {
      id: "reason",
      title: "Reason",
      cut: true,
      sort: (row) => row.reason,
      cell: (row) => (
        <a href={hrefOf(row)} title={row.samples[0]?.reason || row.reason}>
          {oneLine(row.reason || "no reason given", 160)}
        </a>
      ),
    },
    { id: "count", title: "Count", num: true, width: "80px", sort: (row) => row.count, cell: (row) => count(row.count) },
    { id: "trend", title: `Last ${span}`, width: "120px", cell: (row) => <Bars values={row.trend} label={`${count(row.trend.reduce((sum, each) => sum + each, 0))} in the last ${span}`} /> },
    { id: "queue", title: "Dead-letter queue", width: "20%", sort: (row) => row.queues[0]?.queue, cell: (row) => <QueueParts row={row} /> },
    { id: "sources", title: "From", width: "14%", cell: (row) => row.sources.join(", ") },
    { id: "last", title: "Last", num: true, width: "110px", sort: (row) => row.last, cell: (row) => <Time at={row.last} ago /> },
  ];
}

function QueueParts({ row }: { row: GroupRow }) {
  return (
    <>
      {row.queues.slice(0, 2).map((part, index) => (
        <>
          {index > 0 && ", "}
          <a href={to(["queues", part.queue])}>{part.queue}</a>
          {row.queues.length > 1 && <span class="soft"> {count(part.count)}</span>}
        </>
      ))}
      {row.queues.length > 2 && ` and ${row.queues.length - 2} more`}
    </>
  );
}

function redrive(group: GroupRow, done: () => void): void {
  openRedrive({ queues: group.queues.map((part) => part.queue), filter: { reason_group: group.reason }, done });
}

function Selected({ group, reload }: { group: GroupRow; reload: () => void }) {
  const filter = { reason_group: group.reason };
  const queues = group.queues.map((part) => part.queue);
  return (
    <Card
      title={
        <>
          {oneLine(group.reason || "no reason given", 120)} <Badge tone="bad">{plural(group.count, "dead letter")}</Badge>
        </>
      }
      label="Selected group"
      actions={
        <>
          {queues.every((queue) => may("manage", queue)) && (
            <>
              <Button kind="primary" onClick={() => redrive(group, reload)}>
                Redrive {count(group.count)}
              </Button>
              <Button onClick={() => openDiscard({ queues, filter, done: reload })}>Discard…</Button>
            </>
          )}
          <Button onClick={() => void exportMessages(queues, filter, queues.length === 1 ? queues[0]! : "dead-letters")}>Export JSONL</Button>
        </>
      }
    >
      <div class="stack">
        <p class="soft">
          First <Time at={group.first} ago />, last <Time at={group.last} ago />, from {group.sources.join(", ")}.
        </p>
        <Samples of={group.samples} />
      </div>
    </Card>
  );
}
