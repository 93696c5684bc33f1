/** Redrive: send dead letters back to where they came from, as a long operation of the server. */
import { signal } from "@preact/signals";

import { call, requestOf } from "../api/client";
import { parseJson } from "../api/json";
import { cliLine } from "../api/lines";
import type { MessageFilter } from "../api/schema";
import { Badge } from "../components/basics";
import { TextArea, TextField } from "../components/field";
import { openAction } from "../components/dialog";
import { QueueNames } from "../components/queue_names";
import { differences } from "../differ";
import { oneLine, plural } from "../format";
import { readChanges } from "../messages/changes";
import { filterFlags } from "./discard";
import { watchTask } from "./tasks";

export interface RedriveChoice {
  /** The dead-letter queues: those that hold a part of a group. */
  queues: string[];
  filter?: Partial<MessageFilter>;
  done?: () => void;
}

/** One of the first messages of a dry run, before and after the change. */
interface Sample {
  id: string;
  to: string;
  before: string;
  after?: string;
  error?: string;
}

/** A fifth of the messages; at least 100, so that a short redrive need not wait for consumers. The server takes at most
 * 1,000. */
export function usualStop(total: number): number {
  return Math.min(Math.max(Math.ceil(total / 5), 100), 1000);
}

export function openRedrive({ queues, filter, done }: RedriveChoice): void {
  const to = signal("");
  const rate = signal("");
  /** Undefined until somebody changes it: a share of the messages. */
  const given = signal<string | undefined>(undefined);
  const counted = signal(0);
  const stopAfter = { get value() { return given.value ?? String(usualStop(counted.value)); } };
  const set = signal("");
  const remove = signal("");
  const samples = signal<Sample[]>([]);
  const changes = () => readChanges(set.value, remove.value);
  const body = (dryRun: boolean) => {
    const { set: values, remove: paths } = changes();
    return {
      to: to.value || null,
      rate: rate.value ? Number(rate.value) : null,
      filter: filter ? { state: "all" as const, ...filter } : null,
      ...(Object.keys(values).length ? { set: values } : {}),
      ...(paths.length ? { remove: paths } : {}),
      ...(stopAfter.value ? { stop_after: Number(stopAfter.value) } : {}),
      dry_run: dryRun,
    };
  };
  openAction({
    title: `Redrive dead letters of ${queues.join(", ")}`,
    verb: "Redrive",
    wide: true,
    key: () => JSON.stringify([to.value, set.value, remove.value]),
    count: async (aborted) => {
      const found = await Promise.all(queues.map((queue) => call("redrive", { queue }, body(true), aborted)));
      const total = found.reduce((sum, each) => sum + (each.total ?? 0), 0);
      counted.value = total;
      samples.value = found.flatMap((each) => (each.result?.samples ?? []) as Sample[]).slice(0, 5);
      return total;
    },
    body: () => (
      <div class="stack">
        <p>Each message returns to the queue that dead-lettered it. Its receive count starts again; its history stays.</p>
        <div class="form-grid">
          <TextField label="To another queue" placeholder="source queue" value={to.value} onValue={(value) => (to.value = value)} list="redrive-queues" autocomplete="off" />
          <TextField label="Messages per second" type="number" min="0.1" step="any" placeholder="no limit" value={rate.value} onValue={(value) => (rate.value = value)} />
          <TextField label="Stop after failures" type="number" min="1" step="1" placeholder="never" value={stopAfter.value} onValue={(value) => (given.value = value)} help={stopAfter.value ? "As many go out at first, more while consumers succeed. Without consumers it waits for them. Empty: all at once." : "All go out at once, whether they fail again or not."} />
        </div>
        <QueueNames id="redrive-queues" />
        <details>
          <summary>Change fields of JSON bodies</summary>
          <div class="form-grid below">
            <TextArea label="Set" rows={3} placeholder={'customer.id=42\nstate="again"'} value={set.value} onValue={(value) => (set.value = value)} wrong={changes().problem} help="One path=value on each line" />
            <TextArea label="Remove" rows={3} placeholder="customer.name" value={remove.value} onValue={(value) => (remove.value = value)} help="One path on each line" />
          </div>
        </details>
        <Samples of={samples.value} isChange={set.value.trim() !== "" || remove.value.trim() !== ""} />
      </div>
    ),
    request: () => queues.map((queue) => requestOf("redrive", { queue }, body(false))),
    cli: () =>
      queues.map((queue) =>
        cliLine(
          "dlq",
          "redrive",
          queue,
          ...filterFlags(filter),
          to.value && "--to",
          to.value,
          rate.value && "--rate",
          rate.value,
          stopAfter.value && "--stop-after",
          stopAfter.value,
          ...Object.entries(changes().set).flatMap(([path, value]) => ["--set", `${path}=${typeof value === "string" && !isJson(value) ? value : JSON.stringify(value)}`]),
          ...changes().remove.flatMap((path) => ["--remove", path]),
        ),
      ),
    run: async () => {
      const tasks = await Promise.all(queues.map((queue) => call("redrive", { queue }, body(false))));
      for (const task of tasks) watchTask(task.id, done);
      const total = tasks.reduce((sum, each) => sum + (each.total ?? 0), 0);
      return total ? `Redrive of ${plural(total, "message")} has started.` : "The redrive has started.";
    },
    done,
  });
}

/** The command line reads a value as JSON where it can. */
function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** "total: 174 → 1": what a change does to a body. */
function changeOf({ before, after }: Sample): string {
  if (after === undefined) return "unchanged";
  try {
    const changed = differences([parseJson(before), parseJson(after)]).filter((row) => !row.isSame);
    return changed.map((row) => `${row.path}: ${row.values[0] ?? "–"} → ${row.values[1] ?? "–"}`).join(", ") || "unchanged";
  } catch {
    // Cut samples are no JSON.
    return after;
  }
}

function Samples({ of, isChange }: { of: Sample[]; isChange: boolean }) {
  if (of.length === 0) return null;
  return (
    <div class="table-box" tabIndex={0} role="region" aria-label="Dry run">
      <table class="data samples">
        <caption class="soft">Dry run: the first {of.length === 1 ? "one" : of.length}. Nothing has been sent.</caption>
        <thead>
          <tr>
            <th scope="col">To</th>
            <th scope="col">Body</th>
            {isChange && <th scope="col">Changes</th>}
          </tr>
        </thead>
        <tbody>
          {of.map((sample) => (
            <tr key={sample.id}>
              <td class="name">{sample.to}</td>
              <td class="cut" title={sample.before}>
                <code>{oneLine(sample.before, 160)}</code>
              </td>
              {isChange && (
                <td class="cut" title={sample.after ?? sample.error}>
                  {sample.error ? <Badge tone="warn">{sample.error}</Badge> : <code>{oneLine(changeOf(sample), 160)}</code>}
                </td>
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
