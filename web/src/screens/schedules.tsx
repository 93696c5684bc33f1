/** Schedules: messages that are published by cron expression or at an interval. */
import { signal } from "@preact/signals";

import { call, requestOf } from "../api/client";
import { cliLine } from "../api/lines";
import type { ScheduleChange, ScheduleView } from "../api/schema";
import { Badge, Button, Card, Choice, Empty, PageHead, Show, Time } from "../components/basics";
import { openAction } from "../components/dialog";
import { TextArea, TextField } from "../components/field";
import { DataTable, type Column } from "../components/table";
import { toastProblem } from "../components/toast";
import { count, duration, plural } from "../format";
import { useLoad } from "../load";
import { query, to } from "../router";
import { may } from "../session";

export default function Schedules() {
  return (
    <>
      <PageHead title="Schedules">
        {may("manage") && (
          <Button kind="primary" onClick={() => openAdd(() => reload.value?.())}>
            Add a schedule
          </Button>
        )}
      </PageHead>
      <ScheduleTable queue={query.value.get("queue") ?? undefined} />
    </>
  );
}

// The button that adds stands outside of the table that loads.
const reload = signal<(() => void) | undefined>(undefined);

export function ScheduleTable({ queue }: { queue?: string }) {
  const loaded = useLoad((aborted) => call("list_schedules", { next_runs: 3 }, undefined, aborted), [], 5);
  reload.value = loaded.reload;
  return (
    <Card flush label="Schedules">
      <Show of={loaded}>
        {({ schedules }) => (
          <DataTable
            caption="Schedules"
            columns={columns(loaded.reload)}
            rows={schedules.filter((each) => !queue || each.queue === queue)}
            rowKey={(row) => row.name}
            sort="name"
            empty={
              <Empty title="No schedules">
                <p>A schedule publishes a message at every due time, exactly once, also if several servers share one Redis.</p>
                <p>
                  <code>openq schedule add tidy jobs --every 5m</code>
                </p>
              </Empty>
            }
          />
        )}
      </Show>
    </Card>
  );
}

function columns(done: () => void): Column<ScheduleView>[] {
  return [
    {
      id: "name",
      title: "Name",
      name: true,
      sort: (row) => row.name,
      cell: (row) => (
        <>
          {row.name} {row.paused && <Badge tone="warn">paused</Badge>} {row.error && <Badge tone="bad" title={row.error}>✕ {row.error}</Badge>}
        </>
      ),
    },
    { id: "queue", title: "Queue", sort: (row) => row.queue, cell: (row) => <a href={to(["queues", row.queue])}>{row.queue}</a> },
    { id: "when", title: "When", cell: (row) => <code>{row.cron ?? `every ${duration(row.every)}`}</code> },
    { id: "timezone", title: "Time zone", cell: (row) => (row.cron ? row.timezone : "–") },
    {
      id: "next",
      title: "Next run",
      num: true,
      sort: (row) => row.next_run,
      cell: (row) => (row.next_run && !row.paused ? <Time at={row.next_run} ago /> : "–"),
    },
    { id: "last", title: "Last run", num: true, sort: (row) => row.last_run, cell: (row) => (row.last_run ? <Time at={row.last_run} ago /> : "never") },
    { id: "runs", title: "Runs", num: true, sort: (row) => row.runs, cell: (row) => count(row.runs) },
    { id: "missed", title: "Missed", num: true, sort: (row) => row.missed, cell: (row) => <span class={row.missed ? "bad" : ""}>{count(row.missed)}</span> },
    {
      id: "action",
      title: "Action",
      num: true,
      cell: (row) =>
        may("manage", row.queue) ? (
          <span class="row end">
            <Button small aria-label={`Run now ${row.name}`} onClick={() => openRun(row, done)}>
              Run now…
            </Button>
            <Button small aria-label={`${row.paused ? "Resume" : "Pause"} ${row.name}`} onClick={() => openPause(row, done)}>
              {row.paused ? "Resume…" : "Pause…"}
            </Button>
            <Button small aria-label={`Delete ${row.name}`} onClick={() => openDelete(row, done)}>
              Delete…
            </Button>
          </span>
        ) : null,
    },
  ];
}

function openPause(row: ScheduleView, done: () => void): void {
  const operation = row.paused ? "resume_schedule" : "pause_schedule";
  const back = row.paused ? "pause_schedule" : "resume_schedule";
  const params = { schedule: row.name };
  openAction({
    title: row.paused ? `Resume schedule ${row.name}` : `Pause schedule ${row.name}`,
    verb: row.paused ? "Resume" : "Pause",
    body: () => <p>{row.paused ? `It publishes to ${row.queue} again at its next due time.` : `It publishes nothing to ${row.queue} until it is resumed. Messages that are there stay.`}</p>,
    request: () => requestOf(operation, params),
    cli: () => cliLine("schedule", row.paused ? "resume" : "pause", row.name),
    run: async () => {
      await call(operation, params);
      return { text: row.paused ? `${row.name} runs again.` : `${row.name} is paused.`, undo: () => void call(back, params).then(done, toastProblem) };
    },
    done,
  });
}

function openRun(row: ScheduleView, done: () => void): void {
  openAction({
    title: `Run ${row.name} now`,
    verb: "Publish",
    body: () => <p>One message is published to {row.queue} now, out of turn. The next due time stays as it is.</p>,
    request: () => requestOf("run_schedule", { schedule: row.name }),
    cli: () => cliLine("schedule", "run", row.name),
    run: async () => {
      await call("run_schedule", { schedule: row.name });
      return `The message of ${row.name} is in ${row.queue}.`;
    },
    done,
  });
}

function openDelete(row: ScheduleView, done: () => void): void {
  openAction({
    title: `Delete schedule ${row.name}`,
    verb: "Delete",
    danger: true,
    body: () => <p>It publishes nothing more. Its {plural(row.runs, "message")} stay where they are.</p>,
    request: () => requestOf("delete_schedule", { schedule: row.name }),
    cli: () => cliLine("schedule", "rm", row.name),
    run: async () => {
      await call("delete_schedule", { schedule: row.name });
      const { name, queue, payload, payload_encoding, cron, every, timezone } = row;
      const body = { queue, payload, payload_encoding, cron, every, timezone, misfire: row.misfire, jitter: row.jitter } as ScheduleChange;
      return {
        text: `${name} is deleted.`,
        undo: () => void call("put_schedule", { schedule: name }, body).then(done, toastProblem),
      };
    },
    done,
  });
}

function openAdd(done: () => void): void {
  const name = signal("");
  const queue = signal("");
  const kind = signal<"every" | "cron">("every");
  const every = signal("300");
  const cron = signal("0 7 * * mon-fri");
  const timezone = signal(Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC");
  const text = signal("");
  const body = (): ScheduleChange => ({
    queue: queue.value,
    payload: parsed(text.value),
    ...(kind.value === "every" ? { every: Number(every.value) } : { cron: cron.value, timezone: timezone.value }),
  });
  openAction({
    title: "Add a schedule",
    verb: "Add",
    body: () => (
      <div class="stack">
        <div class="form-grid">
          <TextField label="Name" value={name.value} onValue={(value) => (name.value = value)} required autofocus />
          <TextField label="Queue" value={queue.value} onValue={(value) => (queue.value = value)} required />
        </div>
        <Choice
          label="When"
          value={kind.value}
          options={[
            ["every", "At an interval"],
            ["cron", "By cron expression"],
          ]}
          onChange={(value) => (kind.value = value)}
        />
        {kind.value === "every" ? (
          <TextField label="Seconds between runs" type="number" min="1" value={every.value} onValue={(value) => (every.value = value)} />
        ) : (
          <div class="form-grid">
            <TextField label="Cron expression" value={cron.value} onValue={(value) => (cron.value = value)} help="minute hour day month weekday" />
            <TextField label="Time zone" value={timezone.value} onValue={(value) => (timezone.value = value)} />
          </div>
        )}
        <TextArea label="Body" rows={4} value={text.value} onValue={(value) => (text.value = value)} help="JSON is stored as JSON, anything else as text." />
      </div>
    ),
    request: () => requestOf("put_schedule", { schedule: name.value }, body()),
    cli: () =>
      cliLine(
        ...["schedule", "add", name.value, queue.value, text.value || undefined],
        ...(kind.value === "every" ? ["--every", `${every.value}s`] : ["--cron", cron.value, "--timezone", timezone.value]),
      ),
    run: async () => {
      await call("put_schedule", { schedule: name.value }, body());
      return `Schedule ${name.value} is there.`;
    },
    done,
  });
}

/** A JSON value if the text is one, otherwise the text. */
export function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
