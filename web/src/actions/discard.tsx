/** Discard: delete messages for good, as a long operation of the server. */
import { call, requestOf } from "../api/client";
import { cliLine } from "../api/lines";
import type { MessageFilter } from "../api/schema";
import { openAction } from "../components/dialog";
import { plural } from "../format";
import { watchTask } from "./tasks";

export function openDiscard({ queue, filter, done }: { queue: string; filter?: Partial<MessageFilter>; done?: () => void }): void {
  const body = (dryRun: boolean) => ({ filter: filter ? { state: "all" as const, ...filter } : null, dry_run: dryRun });
  openAction({
    title: `Discard messages of ${queue}`,
    verb: "Discard",
    danger: true,
    count: async (aborted) => (await call("discard", { queue }, body(true), aborted)).total ?? 0,
    body: () => <p>The messages are deleted. A replay can bring them back as long as the history of their queue reaches.</p>,
    request: () => requestOf("discard", { queue }, body(false)),
    cli: () => cliLine("dlq", "discard", queue, ...filterFlags(filter)),
    run: async () => {
      const task = await call("discard", { queue }, body(false));
      watchTask(task.id, done);
      return `Discarding ${plural(task.total ?? 0, "message")}.`;
    },
    done,
  });
}

/** The flags of the command line for a filter. */
export function filterFlags(filter: Partial<MessageFilter> | undefined): string[] {
  if (!filter) return [];
  const flags: string[] = [];
  if (filter.text) flags.push("--text", filter.text);
  if (filter.message_type) flags.push("--type", filter.message_type);
  if (filter.reason) flags.push("--reason", filter.reason);
  if (filter.reason_group) flags.push("--reason-group", filter.reason_group);
  for (const id of filter.ids ?? []) flags.push("--id", id);
  for (const [name, value] of Object.entries(filter.attributes ?? {})) flags.push("--attribute", `${name}=${String(value)}`);
  for (const [path, value] of Object.entries(filter.json ?? {})) flags.push("--where", `${path}=${String(value)}`);
  return flags;
}
