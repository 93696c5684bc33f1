/** Dead letters of all queues, grouped by reason: look at samples, redrive, discard, export. */
import { call } from "../api/client";
import type { DeadGroup } from "../api/schema";
import { openDiscard } from "../actions/discard";
import { openRedrive } from "../actions/redrive";
import { Badge, Button, Card, Empty, PageHead, Show, Time } from "../components/basics";
import { SelectField } from "../components/field";
import { DataTable, type Column } from "../components/table";
import { TaskList } from "../components/task_list";
import { count, oneLine, plural } from "../format";
import { useLoad } from "../load";
import { query, setQuery, to } from "../router";
import { mayChange } from "../session";
import { Samples } from "./dead_letter_samples";
import "../styles/dead_letters.css";

export interface GroupRow extends DeadGroup {
  queue: string;
  key: string;
}

interface Found {
  groups: GroupRow[];
  total: number;
  queues: string[];
  complete: boolean;
}

async function loadGroups(signal: AbortSignal): Promise<Found> {
  const { queues } = await call("list_dead_queues", {}, undefined, signal);
  const filled = queues.filter((each) => each.messages > 0);
  const replies = await Promise.all(filled.map((each) => call("group_dead_letters", { queue: each.queue }, undefined, signal)));
  const groups = replies.flatMap((reply, index) => {
    const queue = filled[index]!.queue;
    return reply.groups.map((group) => ({ ...group, queue, key: `${queue} ${group.reason}` }));
  });
  return {
    groups,
    total: filled.reduce((sum, each) => sum + each.messages, 0),
    queues: filled.map((each) => each.queue),
    complete: replies.every((reply) => reply.complete),
  };
}

export default function DeadLetters() {
  const loaded = useLoad(loadGroups, [], 5);
  const queue = query.value.get("queue") ?? "";
  const chosen = query.value.get("group") ?? "";
  return (
    <div class="stack">
      <PageHead title="Dead letters">{loaded.value && <span class="soft">{summaryOf(loaded.value)}</span>}</PageHead>
      <Show of={loaded} lines={6}>
        {(found) => {
          const shown = found.groups.filter((group) => !queue || group.queue === queue);
          const group = shown.find((each) => each.key === chosen) ?? (shown.length === 1 ? shown[0] : undefined);
          if (found.total === 0) return <NoDeadLetters />;
          return (
            <>
              <Card
                title="By reason"
                flush
                actions={
                  <SelectField
                    label="Queue"
                    value={queue}
                    options={[["", "All queues"], ...[...new Set([...found.queues, queue])].filter(Boolean).map((name) => [name, name] as const)]}
                    onValue={(value) => setQuery({ queue: value, group: undefined })}
                  />
                }
              >
                <DataTable caption="Dead letters by reason" columns={COLUMNS} rows={shown} rowKey={(row) => row.key} sort="-count" />
              </Card>
              {!found.complete && <p class="soft">There are more dead letters than could be grouped in ten seconds. The counts are of those that were read.</p>}
              {group && <Selected group={group} reload={loaded.reload} />}
            </>
          );
        }}
      </Show>
      <TaskList kinds={["redrive", "discard"]} />
    </div>
  );
}

function summaryOf(found: Found): string {
  return found.total === 0 ? "none" : `${count(found.total)} in ${plural(found.queues.length, "queue")}`;
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

const COLUMNS: Column<GroupRow>[] = [
  {
    id: "reason",
    title: "Reason",
    cut: true,
    sort: (row) => row.reason,
    cell: (row) => (
      <a href={to(["dead-letters"], { queue: query.value.get("queue"), group: row.key })} title={row.sample}>
        {oneLine(row.reason || "no reason given", 160)}
      </a>
    ),
  },
  { id: "queue", title: "Dead-letter queue", sort: (row) => row.queue, cell: (row) => <a href={to(["queues", row.queue])}>{row.queue}</a> },
  { id: "sources", title: "From", cell: (row) => row.sources.join(", ") },
  { id: "count", title: "Count", num: true, sort: (row) => row.count, cell: (row) => count(row.count) },
  { id: "first", title: "First", num: true, sort: (row) => row.first, cell: (row) => <Time at={row.first} ago /> },
  { id: "last", title: "Last", num: true, sort: (row) => row.last, cell: (row) => <Time at={row.last} ago /> },
];

function Selected({ group, reload }: { group: GroupRow; reload: () => void }) {
  const filter = { reason_group: group.reason };
  return (
    <Card
      title={
        <>
          {oneLine(group.reason || "no reason given", 120)} <Badge tone="bad">{plural(group.count, "dead letter")}</Badge>
        </>
      }
      label="Selected group"
      actions={
        mayChange() && (
          <>
            <Button kind="primary" onClick={() => openRedrive({ queue: group.queue, filter, done: reload })}>
              Redrive {count(group.count)}
            </Button>
            <Button onClick={() => openDiscard({ queue: group.queue, filter, done: reload })}>Discard…</Button>
            <a class="button" href={`/api/v1/export?queue=${encodeURIComponent(group.queue)}`} download={`${group.queue}.jsonl`}>
              Export JSONL
            </a>
          </>
        )
      }
    >
      <Samples queue={group.queue} ids={group.ids} reason={group.sample} />
    </Card>
  );
}
