/** Discard: delete messages for good, as a long operation of the server. */
import { call, requestOf } from "../api/client";
import { plainText } from "../api/json";
import { cliLine, flag, type Flag } from "../api/lines";
import type { MessageFilter } from "../api/schema";
import { openAction } from "../components/dialog";
import { plural } from "../format";
import { watchTask } from "./tasks";

export interface DiscardChoice {
  /** The queues to discard from: those that hold a part of a group. */
  queues: string[];
  filter?: Partial<MessageFilter>;
  done?: () => void;
}

export function openDiscard({ queues, filter, done }: DiscardChoice): void {
  const body = (dryRun: boolean) => ({ filter: filter ? { state: "all" as const, ...filter } : null, dry_run: dryRun, undo: !dryRun });
  openAction({
    title: `Discard messages of ${queues.join(", ")}`,
    verb: "Discard",
    danger: true,
    count: async (aborted) => {
      const found = await Promise.all(queues.map((queue) => call("discard", { queue }, body(true), aborted)));
      return found.reduce((sum, each) => sum + (each.total ?? 0), 0);
    },
    body: () => <p>The messages are deleted. For ten minutes this can be undone, unless they are very many; a replay can bring them back as long as the history of their queue reaches.</p>,
    request: () => queues.map((queue) => requestOf("discard", { queue }, body(false))),
    cli: () => queues.map((queue) => cliLine("dlq", "discard", queue, ...filterFlags(filter))),
    run: async () => {
      const tasks = await Promise.all(queues.map((queue) => call("discard", { queue }, body(false))));
      for (const task of tasks) watchTask(task.id, done);
      return `Discarding ${plural(tasks.reduce((sum, each) => sum + (each.total ?? 0), 0), "message")}.`;
    },
    done,
  });
}

/** The flags of the command line for a filter. */
export function filterFlags(filter: Partial<MessageFilter> | undefined): Flag[] {
  if (!filter) return [];
  const flags: Flag[] = [];
  const add = (name: string, value: string) => flags.push(flag(name, value));
  if (filter.text) add("--text", filter.text);
  if (filter.message_type) add("--type", filter.message_type);
  if (filter.reason) add("--reason", filter.reason);
  // "" is a group too: dead letters without a reason.
  if (filter.reason_group !== undefined && filter.reason_group !== null) add("--reason-group", filter.reason_group);
  for (const id of filter.ids ?? []) add("--id", id);
  for (const [name, value] of Object.entries(filter.attributes ?? {})) add("--attribute", `${name}=${plainText(value)}`);
  for (const [path, value] of Object.entries(filter.json ?? {})) add("--where", `${path}=${plainText(value)}`);
  return flags;
}
