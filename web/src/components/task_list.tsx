/** Long operations with progress and a button to cancel. */
import { call, requestOf } from "../api/client";
import { cliLine } from "../api/lines";
import type { TaskView } from "../api/schema";
import { outcomes, RUNNING, undoOf } from "../actions/tasks";
import { count, duration, plural } from "../format";
import { useLoad, type Loaded } from "../load";
import { to } from "../router";
import { may } from "../session";
import { Badge, Button, Card, Empty, Progress, Show, Time } from "./basics";
import { openAction } from "./dialog";
import { toast, toastProblem } from "./toast";
import { DataTable, type Column } from "./table";

/** Running and recent operations; `kinds` and `part` undefined: all. Draws nothing where there is none, unless `always`. */
export function TaskList({ kinds, part, always }: { kinds?: string[]; part?: "running" | "ended"; always?: boolean }) {
  const loaded = useLoad((signal) => call("list_tasks", {}, undefined, signal), [], 1);
  const tasks = (loaded.value?.tasks ?? []).filter((task) => (!kinds || kinds.includes(task.kind)) && (!part || (task.state === RUNNING) === (part === "running")));
  if (!always && tasks.length === 0) return null;
  return (
    <Card title={part === "running" ? "Running now" : part === "ended" ? "Ended operations" : "Operations"} flush>
      <Show of={loaded}>
        {() => (
          <DataTable
            caption="Long operations"
            columns={columns(loaded)}
            rows={tasks}
            rowKey={(task) => task.id ?? ""}
            empty={
              <Empty title="No operations">
                <p>Redrive, discard and replay run inside the server. They are shown here while they run, and for a while after.</p>
              </Empty>
            }
          />
        )}
      </Show>
    </Card>
  );
}

function columns(loaded: Loaded<unknown>): Column<TaskView>[] {
  return [
    { id: "kind", title: "Operation", sort: (task) => task.kind, cell: (task) => task.kind },
    { id: "queue", title: "Queue", sort: (task) => task.queue, cell: (task) => <a href={to(["queues", task.queue])}>{task.queue}</a> },
    { id: "state", title: "State", sort: (task) => task.state, cell: (task) => <State task={task} /> },
    {
      id: "progress",
      title: "Progress",
      width: "180px",
      cell: (task) => (
        <>
          <span class="nowrap">
            {count(task.done)}
            {task.total !== null && ` of ${count(task.total)}`} {remaining(task)}
          </span>
          <Progress done={task.done} total={task.total} />
        </>
      ),
    },
    { id: "started", title: "Started", num: true, sort: (task) => task.started ?? "", cell: (task) => (task.started ? <Time at={task.started} ago /> : "–") },
    {
      id: "action",
      title: "Action",
      num: true,
      cell: (task) =>
        may("manage", task.queue) ? <Actions task={task} reload={loaded.reload} /> : null,
    },
  ];
}

function State({ task }: { task: TaskView }) {
  const tone = task.error ? "bad" : task.paused ? "warn" : task.state === RUNNING ? "accent" : task.state === "done" ? "good" : "warn";
  const notes = outcomes(task);
  return (
    <>
      <Badge tone={tone}>{task.paused ? "❚❚ paused" : task.state}</Badge> {task.error && <span class="bad">{task.error}</span>}
      {notes.length > 0 && <span class="warn"> {notes.join(" ")}</span>}
    </>
  );
}

function Actions({ task, reload }: { task: TaskView; reload: () => void }) {
  const undo = undoOf(task, reload);
  if (task.state !== RUNNING) {
    return undo ? (
      <Button small aria-label={`Undo ${task.kind} of ${task.queue}`} onClick={undo.run}>
        Undo
      </Button>
    ) : null;
  }
  return (
    <span class="row end nowrap-row">
      {Number(task.result?.waits_for) > 0 && (
        <Button small aria-label={`Send the rest of ${task.queue}`} onClick={() => openRest(task, reload)}>
          Send the rest…
        </Button>
      )}
      <Button small aria-label={`${task.paused ? "Resume" : "Pause"} ${task.kind} of ${task.queue}`} onClick={() => void setPaused(task, reload)}>
        {task.paused ? "Resume" : "Pause"}
      </Button>
      <Button small aria-label={`Cancel ${task.kind} of ${task.queue}`} onClick={() => cancel(task, reload)}>
        Cancel…
      </Button>
    </span>
  );
}

async function setPaused(task: TaskView, done: () => void): Promise<void> {
  try {
    await (task.paused ? call("resume_task", { id: task.id ?? "" }, {}) : call("pause_task", { id: task.id ?? "" }));
    toast(task.paused ? `${task.kind} of ${task.queue} continues.` : `${task.kind} of ${task.queue} is paused.`);
    done();
  } catch (error) {
    toastProblem(error);
  }
}

/** Time left at the speed so far. */
export function remaining(task: Pick<TaskView, "state" | "paused" | "done" | "total" | "started">, now: number = Date.now()): string {
  if (task.state !== RUNNING || task.paused || !task.started || !task.total || task.done === 0) return "";
  const spent = (now - Date.parse(task.started)) / 1000;
  return `· ${duration((spent / task.done) * (task.total - task.done))} left`;
}

function openRest(task: TaskView, done: () => void): void {
  const id = task.id ?? "";
  openAction({
    title: `Send the rest of ${task.queue}`,
    verb: "Send the rest",
    body: () => (
      <p>
        {task.total === null ? "The rest" : plural(task.total - task.done, "message")} goes out without waiting for consumers. Those that fail again become dead letters again; nothing stops the redrive.
      </p>
    ),
    request: () => requestOf("resume_task", { id }, { watch: false }),
    cli: () => cliLine("task", "resume", id, "--unwatched"),
    run: async () => {
      await call("resume_task", { id }, { watch: false });
      return "The rest is being sent.";
    },
    done,
  });
}

function cancel(task: TaskView, done: () => void): void {
  const id = task.id ?? "";
  openAction({
    title: `Cancel ${task.kind} of ${task.queue}`,
    verb: "Cancel the operation",
    danger: true,
    body: () => <p>What is done stays done: {count(task.done)} messages. The rest stays where it is.</p>,
    request: () => requestOf("cancel_task", { id }),
    cli: () => cliLine("task", "cancel", id),
    run: async () => {
      await call("cancel_task", { id });
      return "The operation is being cancelled.";
    },
    done,
  });
}
