/** Redrive: send dead letters back to where they came from, as a long operation of the server. */
import { signal } from "@preact/signals";

import { call, requestOf } from "../api/client";
import { cliLine } from "../api/lines";
import type { MessageFilter } from "../api/schema";
import { TextField } from "../components/field";
import { openAction } from "../components/dialog";
import { plural } from "../format";
import { filterFlags } from "./discard";
import { watchTask } from "./tasks";

export interface RedriveChoice {
  /** The dead-letter queue. */
  queue: string;
  filter?: Partial<MessageFilter>;
  done?: () => void;
}

export function openRedrive({ queue, filter, done }: RedriveChoice): void {
  const to = signal("");
  const rate = signal("");
  const body = (dryRun: boolean) => ({
    to: to.value || null,
    rate: rate.value ? Number(rate.value) : null,
    filter: filter ? { state: "all" as const, ...filter } : null,
    dry_run: dryRun,
  });
  openAction({
    title: `Redrive dead letters of ${queue}`,
    verb: "Redrive",
    key: () => to.value,
    count: async (aborted) => (await call("redrive", { queue }, body(true), aborted)).total ?? 0,
    body: () => (
      <>
        <p>Each message returns to the queue that dead-lettered it. Its receive count starts again; its history stays.</p>
        <div class="form-grid">
          <TextField label="To another queue" placeholder="source queue" value={to.value} onValue={(value) => (to.value = value)} />
          <TextField label="Messages per second" type="number" min="0.1" step="any" placeholder="no limit" value={rate.value} onValue={(value) => (rate.value = value)} />
        </div>
      </>
    ),
    request: () => requestOf("redrive", { queue }, body(false)),
    cli: () => cliLine("dlq", "redrive", queue, ...filterFlags(filter), to.value && "--to", to.value, rate.value && "--rate", rate.value),
    run: async () => {
      const task = await call("redrive", { queue }, body(false));
      watchTask(task.id, done);
      return `Redrive of ${plural(task.total ?? 0, "message")} has started.`;
    },
    done,
  });
}
