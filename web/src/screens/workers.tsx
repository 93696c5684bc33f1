/** Processes of `openq worker`, and the jobs that they run now. */
import { call, requestOf } from "../api/client";
import { cliLine } from "../api/lines";
import type { RunningJob, WorkerEntry } from "../api/schema";
import { Badge, Button, Card, Empty, PageHead, Show, Time } from "../components/basics";
import { CopyLine } from "../components/code";
import { openAction } from "../components/dialog";
import { DataTable, type Column } from "../components/table";
import { bytes, count } from "../format";
import { useLoad } from "../load";
import { to } from "../router";
import { may } from "../session";

interface JobRow extends RunningJob {
  worker: string;
}

export default function Workers() {
  const loaded = useLoad((aborted) => call("show_workers", {}, undefined, aborted), [], 2);
  return (
    <>
      <PageHead title="Workers" />
      <Show of={loaded}>
        {({ workers }) => (
          <div class="stack">
            <Card title={<>Processes {workers.length > 0 && <span class="soft">{count(workers.length)}</span>}</>} label="Processes" flush>
              <DataTable caption="Processes of workers" columns={columns(loaded.reload)} rows={workers} rowKey={(row) => row.name} sort="name" empty={<NoWorkers />} />
            </Card>
            {workers.length > 0 && <Jobs workers={workers} />}
          </div>
        )}
      </Show>
    </>
  );
}

function NoWorkers() {
  return (
    <Empty title="No worker runs">
      <p>A worker runs the tasks of an app, a command or an HTTP endpoint for each message:</p>
      <CopyLine text="openq worker shop:app --processes 4" />
    </Empty>
  );
}

function columns(reload: () => void): Column<WorkerEntry>[] {
  return [
    { id: "name", title: "Process", name: true, sort: (row) => row.name, cell: (row) => row.name },
    { id: "state", title: "State", sort: (row) => row.state, cell: (row) => <Badge tone={row.state === "running" ? "good" : "warn"}>{row.state}</Badge> },
    { id: "runs", title: "Runs", cut: true, cell: (row) => row.runs },
    { id: "queues", title: "Queues", cut: true, cell: (row) => Object.keys(row.queues).join(", ") },
    { id: "busy", title: "Busy", num: true, sort: (row) => row.busy, cell: (row) => `${count(row.busy)} of ${count(row.slots)}` },
    { id: "memory", title: "Memory", num: true, sort: (row) => row.memory, cell: (row) => bytes(row.memory) },
    { id: "host", title: "Host", sort: (row) => row.host, cell: (row) => `${row.host} (${row.pid})` },
    { id: "python", title: "Python", cell: (row) => row.python },
    { id: "started", title: "Started", num: true, sort: (row) => row.started, cell: (row) => <Time at={row.started} ago /> },
    {
      id: "action",
      title: "Action",
      num: true,
      cell: (row) =>
        may("manage") ? (
          <span class="row end">
            <Button small aria-label={`Quiet ${row.name}`} onClick={() => openCommand("quiet", row, reload)}>
              Quiet…
            </Button>
            <Button small aria-label={`Stop ${row.name}`} onClick={() => openCommand("stop", row, reload)}>
              Stop…
            </Button>
          </span>
        ) : null,
    },
  ];
}

function openCommand(command: "quiet" | "stop", row: WorkerEntry, done: () => void): void {
  const operation = command === "quiet" ? "quiet_worker" : "stop_worker";
  openAction({
    title: command === "quiet" ? `Quiet ${row.name}` : `Stop ${row.name}`,
    verb: command === "quiet" ? "Quiet" : "Stop",
    danger: command === "stop",
    body: () => (
      <p>
        {command === "quiet"
          ? "The process finishes the jobs that it has and receives nothing more. It stays until it is stopped."
          : "The process finishes its jobs within its grace period and ends. Jobs that are not done by then return to their queues."}{" "}
        It runs {count(row.busy)} now.
      </p>
    ),
    request: () => requestOf(operation, { name: row.name }),
    cli: () => cliLine("worker", command, row.name),
    run: async () => {
      await call(operation, { name: row.name });
      return `${row.name} ${command === "quiet" ? "receives nothing more" : "is stopping"}.`;
    },
    done,
  });
}

const JOB_COLUMNS: Column<JobRow>[] = [
  { id: "task", title: "Task", name: true, sort: (row) => row.task, cell: (row) => row.task },
  { id: "id", title: "Message", cell: (row) => <a href={to(["messages", row.id], { queue: row.queue })}>…{row.id.slice(-12)}</a> },
  { id: "queue", title: "Queue", sort: (row) => row.queue, cell: (row) => <a href={to(["queues", row.queue])}>{row.queue}</a> },
  { id: "attempt", title: "Attempt", num: true, sort: (row) => row.attempt, cell: (row) => count(row.attempt) },
  { id: "worker", title: "Process", sort: (row) => row.worker, cell: (row) => row.worker },
  { id: "since", title: "Since", num: true, sort: (row) => row.since, cell: (row) => <Time at={row.since} ago /> },
];

function Jobs({ workers }: { workers: WorkerEntry[] }) {
  const jobs = workers.flatMap((worker) => (worker.running ?? []).map((job) => ({ ...job, worker: worker.name })));
  return (
    <Card title="Jobs that run now" flush>
      <DataTable caption="Jobs that run now" columns={JOB_COLUMNS} rows={jobs} rowKey={(row) => `${row.worker} ${row.id}`} sort="since" empty={<p class="state">No job runs at this moment.</p>} />
    </Card>
  );
}
