/** What can be done to a queue: create, purge, pause, resume, delete. */
import { signal } from "@preact/signals";

import { call, Problem, requestOf } from "../api/client";
import { cliLine } from "../api/lines";
import { bringBack } from "./tasks";
import { openAction } from "../components/dialog";
import { toast, toastProblem } from "../components/toast";
import { CheckField, TextField } from "../components/field";
import { plural } from "../format";
import { queues } from "../live";
import { navigate, to } from "../router";
import { changeOf, differences, formOf, settingsLine } from "../queue/settings";

export function openCreate(): void {
  const name = signal("");
  const form = signal(formOf({}));
  const withDead = signal(false);
  const base = formOf({});
  const field = (setting: string) => ({ value: form.value[setting] ?? "", onValue: (value: string) => (form.value = { ...form.value, [setting]: value }) });
  const wanted = () => {
    const filled = { ...form.value };
    if (withDead.value) filled.dlq ||= `${name.value}-dead`;
    return differences(base, filled);
  };
  openAction({
    title: "Create a queue",
    verb: "Create",
    body: () => {
      const { problems } = wanted();
      return (
        <div class="stack">
          <TextField label="Name" value={name.value} onValue={(value) => (name.value = value)} required autofocus wrong={queues.value.has(name.value) ? "A queue of this name exists." : undefined} />
          <div class="form-grid">
            <TextField label="Visibility timeout" placeholder="30s" help="How long a delivery is invisible to others" wrong={problems.visibility_timeout} {...field("visibility_timeout")} />
            <TextField label="Retention" placeholder="4d" help="How long messages are kept; forever" wrong={problems.retention} {...field("retention")} />
            <TextField label="Delay" placeholder="0s" help="Of new messages" wrong={problems.delay} {...field("delay")} />
            <TextField label="Rate" placeholder="no limit" help="Deliveries, such as 100/s" wrong={problems.rate} {...field("rate")} />
          </div>
          <CheckField label="Strict order in each message group (FIFO)" checked={form.value.fifo === "true"} onValue={(value) => (form.value = { ...form.value, fifo: value ? "true" : "" })} />
          <CheckField label="Keep messages that fail in a dead-letter queue" checked={withDead.value} onValue={(value) => (withDead.value = value)} />
          {withDead.value && (
            <div class="form-grid">
              <TextField label="Dead-letter queue" placeholder={`${name.value || "NAME"}-dead`} {...field("dlq")} />
              <TextField label="Deliveries before that" placeholder="3" wrong={problems.max_receives} {...field("max_receives")} />
            </div>
          )}
          <p class="soft">All other settings have their defaults; they can be changed at any time.</p>
        </div>
      );
    },
    request: () => requestOf("create_queue", {}, { ...changeOf(wanted().changes), name: name.value }),
    cli: () => settingsLine("create", name.value || "NAME", wanted().changes) ?? cliLine("queue", "create", name.value || "NAME"),
    run: async () => {
      const { changes, problems } = wanted();
      if (!name.value.trim()) throw new Problem(0, "page", "The queue needs a name.");
      if (Object.keys(problems).length) throw new Problem(0, "page", "Some fields cannot be read.");
      await call("create_queue", {}, { ...changeOf(changes), name: name.value.trim() });
      navigate(to(["queues", name.value.trim()]));
      return `Queue ${name.value.trim()} is ready.`;
    },
  });
}

export function openPurge(queue: string, done?: () => void): void {
  openAction({
    title: `Purge ${queue}`,
    verb: "Purge",
    danger: true,
    count: async (aborted) => (await call("purge_queue", { queue, dry_run: true }, undefined, aborted)).messages,
    body: () => <p>All messages are deleted, those in flight too. The queue stays. For ten minutes ready and delayed messages can be brought back, unless they are very many.</p>,
    request: () => requestOf("purge_queue", { queue, undo: true }),
    cli: () => cliLine("queue", "purge", queue),
    run: async () => {
      const { messages, undo } = await call("purge_queue", { queue, undo: true });
      return { text: `${plural(messages, "message")} deleted from ${queue}.`, undo: undo ? () => void bringBack(queue, undo, done) : undefined };
    },
    done,
  });
}

export function openDelete(queue: string, done?: () => void): void {
  const typed = signal("");
  openAction({
    title: `Delete queue ${queue}`,
    verb: "Delete the queue",
    danger: true,
    body: () => (
      <>
        <p>The queue, its settings and all its messages are deleted. Consumers get an error. This cannot be undone.</p>
        <TextField label={`Type ${queue} to delete it`} value={typed.value} onValue={(value) => (typed.value = value)} autofocus autocomplete="off" />
        <DeletedCount queue={queue} />
      </>
    ),
    request: () => requestOf("delete_queue", { queue }),
    cli: () => cliLine("queue", "rm", queue),
    run: async () => {
      if (typed.value !== queue) throw new Problem(0, "page", "The name is not the same.");
      const gone = await call("delete_queue", { queue });
      return `Queue ${queue} is deleted, with ${plural(gone.messages, "message")}.`;
    },
    done,
  });
}

function DeletedCount({ queue }: { queue: string }) {
  const row = queues.value.get(queue);
  return row ? <p>{plural(row.ready + row.delayed + row.inFlight, "message")} would be deleted with it.</p> : null;
}

export async function setPaused(queue: string, isPaused: boolean, done?: () => void): Promise<void> {
  try {
    await call(isPaused ? "pause_queue" : "resume_queue", { queue });
    toast(isPaused ? `${queue} is paused: nothing is delivered until it is resumed.` : `${queue} delivers again.`, "good", isPaused ? { title: "Undo", run: () => void setPaused(queue, false, done) } : undefined);
    done?.();
  } catch (error) {
    toastProblem(error);
  }
}
