/** What can be done to messages that wait in a queue: move, delay, cancel, edit. Each says first how many are still there. */
import { signal } from "@preact/signals";

import { call, Problem, requestOf } from "../api/client";
import { parseJson } from "../api/json";
import { cliLine, curlLines, flag, withBody } from "../api/lines";
import type { MessageView } from "../api/schema";
import { openAction } from "../components/dialog";
import { TextArea, TextField } from "../components/field";
import { QueueNames } from "../components/queue_names";
import { toast, toastProblem } from "../components/toast";
import { plural } from "../format";
import { batches, readPresent, restoredDraft } from "../messages/restore";
import { seconds } from "../messages/search_syntax";

interface Choice {
  queue: string;
  ids: string[];
  done?: () => void;
}

const AT_ONCE = 8;

/** Runs `act` for every id, some at a time; says how many succeeded. The first error counts where none did. */
export async function forEach(ids: string[], act: (id: string) => Promise<unknown>): Promise<{ done: string[]; failed: number }> {
  const left = [...ids];
  const done: string[] = [];
  let failed = 0;
  let first: unknown;
  async function work(): Promise<void> {
    for (let id = left.shift(); id !== undefined; id = left.shift()) {
      try {
        await act(id);
        done.push(id);
      } catch (error) {
        failed += 1;
        first ??= error;
      }
    }
  }
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  if (done.length === 0 && first) throw first;
  return { done, failed };
}

/** The messages of the ids that are still in the queue. */
function present(queue: string, ids: string[], aborted?: AbortSignal): Promise<MessageView[]> {
  return readPresent(ids, (body) => call("search", { queue }, { ...body, budget: 10 }, aborted));
}

function said(verb: string, result: { done: string[]; failed: number }): string {
  const rest = result.failed ? ` ${plural(result.failed, "message")} could not be: with a consumer, or no longer in the queue.` : "";
  return `${plural(result.done.length, "message")} ${verb}.${rest}`;
}

export function openMove({ queue, ids, done }: Choice): void {
  const target = signal("");
  openAction({
    title: `Move to another queue`,
    verb: "Move",
    count: async (aborted) => (await present(queue, ids, aborted)).length,
    body: () => (
      <>
        <TextField label="To queue" value={target.value} onValue={(value) => (target.value = value)} list="move-queues" required autofocus autocomplete="off" />
        <QueueNames id="move-queues" without={queue} />
      </>
    ),
    curl: () => curlLines(ids, (id) => requestOf("move_message", { queue, id }, { to: target.value })),
    cli: () => cliLine("message", "move", queue, ...ids, "--to", target.value || "QUEUE"),
    run: async () => {
      const to = target.value;
      const result = await forEach(ids, (id) => call("move_message", { queue, id }, { to }));
      const undo = () =>
        void forEach(result.done, (id) => call("move_message", { queue: to, id }, { to: queue })).then((back) => (toast(said(`moved back to ${queue}`, back)), done?.()), toastProblem);
      return { text: said(`moved to ${to}`, result), undo };
    },
    done,
  });
}

export function openDelay({ queue, ids, done }: Choice): void {
  const delay = signal("10m");
  openAction({
    title: "Delay delivery",
    verb: "Delay",
    count: async (aborted) => (await present(queue, ids, aborted)).length,
    body: () => <TextField label="For" help="30s, 10m, 2h, 1d; 0 makes them ready now" value={delay.value} onValue={(value) => (delay.value = value)} wrong={seconds(delay.value) === undefined ? "A time such as 10m." : undefined} />,
    curl: () => curlLines(ids, (id) => requestOf("edit_message", { queue, id }, { delay: seconds(delay.value) ?? 0 })),
    // In seconds: the page takes more words for units than the command.
    cli: () => cliLine("message", "delay", queue, ...ids, "--for", seconds(delay.value) ?? "TIME"),
    run: async () => {
      const wanted = seconds(delay.value);
      if (wanted === undefined) throw new Problem(0, "page", "Give a time such as 10m.");
      const before = new Map((await present(queue, ids)).map((each) => [each.id, each.due_at]));
      const result = await forEach(ids, (id) => call("edit_message", { queue, id }, { delay: wanted }));
      // Of one that came into the queue in between nothing is known to go back to.
      const known = result.done.filter((id) => before.has(id));
      const undo = () =>
        void forEach(known, (id) => call("edit_message", { queue, id }, { delay: secondsUntil(before.get(id)) })).then((back) => (toast(said("due as before", back)), done?.()), toastProblem);
      return { text: said(`delayed by ${delay.value}`, result), undo };
    },
    done,
  });
}

/** How long until a time; 0 where there is none, or it has passed. */
function secondsUntil(time: string | null | undefined): number {
  return time ? Math.max(0, (Date.parse(time) - Date.now()) / 1000) : 0;
}

export function openCancel({ queue, ids, done }: Choice): void {
  openAction({
    title: ids.length === 1 ? "Cancel this message" : `Cancel ${plural(ids.length, "message")}`,
    verb: "Cancel and delete",
    danger: true,
    count: async (aborted) => (await present(queue, ids, aborted)).length,
    body: () => <p>They are deleted from {queue} and never delivered. They are not dead-lettered.</p>,
    curl: () => curlLines(ids, (id) => requestOf("cancel_message", { queue, id })),
    cli: () => cliLine("message", "cancel", queue, ...ids),
    run: async () => {
      const before = await present(queue, ids);
      const result = await forEach(ids, (id) => call("cancel_message", { queue, id }));
      const gone = new Set(result.done);
      const kept = before.filter((each) => gone.has(each.id));
      const lost = gone.size - kept.length;
      const text = said("cancelled", result) + (lost > 0 ? ` ${plural(lost, "message")} of them cannot be restored.` : "");
      return { text, undo: kept.length > 0 ? () => void restore(queue, kept).then(done, toastProblem) : undefined };
    },
    done,
  });
}

/** Publishes messages again as they were, and says how many of them. */
async function restore(queue: string, messages: MessageView[]): Promise<void> {
  let restored = 0;
  let problem: unknown;
  try {
    for (const part of batches(messages.map((each) => restoredDraft(each)))) restored += (await call("publish_batch", { queue, restore: true }, part)).count;
  } catch (error) {
    problem = error;
  }
  if (problem !== undefined && restored === 0) throw problem;
  const failed = messages.length - restored;
  const why = problem instanceof Problem ? ` ${problem.message}` : "";
  toast(`${plural(restored, "message")} restored at the end of ${queue}.${failed > 0 ? ` ${plural(failed, "message")} could not be.${why}` : ""}`, failed > 0 ? "bad" : "good");
}

/** A body as text for an editor; undefined: bytes, which are not edited here. */
export function editable(message: MessageView): { text: string; isJson: boolean } | undefined {
  if (message.payload_encoding) return undefined;
  const isJson = typeof message.payload !== "string" || message.payload_form === "json";
  return { text: isJson ? JSON.stringify(message.payload, null, 2) : String(message.payload), isJson };
}

export function openEdit(queue: string, message: MessageView, done?: () => void): void {
  const body = editable(message);
  if (!body) return toast("A body of bytes cannot be edited here. Send a copy from a file instead.", "bad");
  const text = signal(body.text);
  const kind = signal(message.message_type ?? "");
  const attributes = signal(JSON.stringify(message.attributes));
  const change = () => ({
    ...(text.value !== body.text ? { payload: body.isJson ? parseJson(text.value) : text.value } : {}),
    ...(kind.value !== (message.message_type ?? "") ? { message_type: kind.value || null } : {}),
    ...(attributes.value !== JSON.stringify(message.attributes) ? { attributes: parseJson(attributes.value) as Record<string, unknown> } : {}),
  });
  const wrong = (value: string) => {
    try {
      JSON.parse(value);
      return undefined;
    } catch (error) {
      return `Not JSON: ${(error as Error).message}`;
    }
  };
  openAction({
    title: `Edit message ${message.id}`,
    verb: "Save",
    body: () => (
      <div class="stack">
        <TextArea label={body.isJson ? "Body (JSON)" : "Body (text)"} rows={10} value={text.value} onValue={(value) => (text.value = value)} wrong={body.isJson ? wrong(text.value) : undefined} />
        <div class="form-grid">
          <TextField label="Message type" value={kind.value} onValue={(value) => (kind.value = value)} />
          <TextField label="Attributes (JSON)" value={attributes.value} onValue={(value) => (attributes.value = value)} wrong={wrong(attributes.value)} />
        </div>
      </div>
    ),
    request: () => {
      try {
        return requestOf("edit_message", { queue, id: message.id }, change());
      } catch {
        return requestOf("edit_message", { queue, id: message.id }, {});
      }
    },
    cli: () => editLine(queue, message.id, body.isJson, {
      body: text.value === body.text ? undefined : text.value,
      type: kind.value === (message.message_type ?? "") ? undefined : kind.value,
      attributes: attributes.value === JSON.stringify(message.attributes) ? undefined : attributes.value,
    }),
    run: async () => {
      if ((body.isJson && wrong(text.value)) || wrong(attributes.value)) throw new Problem(0, "page", "Mend the JSON first.");
      await call("edit_message", { queue, id: message.id }, change());
      return "The message is changed. It keeps its place, its id and its history.";
    },
    done,
  });
}

function editLine(queue: string, id: string, isJson: boolean, change: { body?: string; type?: string; attributes?: string }): string {
  const options = [
    change.body !== undefined && isJson && flag("--as", "json"),
    change.type !== undefined && flag("--type", change.type),
    change.attributes !== undefined && flag("--attributes", change.attributes),
  ];
  if (change.body === "") return `${cliLine("message", "edit", queue, id, ...options)} ''`;
  return withBody(cliLine("message", "edit", ...options, queue, id, ...(change.body === undefined ? [] : ["--", change.body])), change.body ?? "");
}

/** Publishes a past message again, as a new message. */
export function openReplay(queue: string, id: string, done?: () => void): void {
  const target = signal(queue);
  const body = (dryRun: boolean) => ({ filter: { ids: [id] }, to: target.value === queue ? null : target.value, dry_run: dryRun });
  openAction({
    title: "Replay as a copy",
    verb: "Replay",
    key: () => target.value,
    count: async (aborted) => (await call("replay", { queue }, body(true), aborted)).total ?? 0,
    body: () => (
      <>
        <p>The message is published again as it was, with a new id. This one stays as it is.</p>
        <TextField label="To queue" value={target.value} onValue={(value) => (target.value = value)} list="replay-queues" autocomplete="off" />
        <QueueNames id="replay-queues" />
      </>
    ),
    request: () => requestOf("replay", { queue }, body(false)),
    cli: () => cliLine("replay", queue, "--id", id, target.value !== queue && "--to", target.value !== queue && target.value),
    run: async () => {
      await call("replay", { queue }, body(false));
      return `A copy goes to ${target.value}.`;
    },
    done,
  });
}
