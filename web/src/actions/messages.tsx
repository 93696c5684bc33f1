/** What can be done to messages that wait in a queue: move, delay, cancel, edit. Each says first how many are still there. */
import { signal } from "@preact/signals";

import { call, Problem, requestOf } from "../api/client";
import { parseJson } from "../api/json";
import { cliLine, curlLines, flag } from "../api/lines";
import type { MessageView, NewMessage } from "../api/schema";
import { openAction } from "../components/dialog";
import { TextArea, TextField } from "../components/field";
import { QueueNames } from "../components/queue_names";
import { toast, toastProblem } from "../components/toast";
import { plural } from "../format";
import { seconds } from "../messages/search_syntax";

interface Choice {
  queue: string;
  ids: string[];
  done?: () => void;
}

const AT_ONCE = 8;
const MAX_IDS = 1000;

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
async function present(queue: string, ids: string[], aborted?: AbortSignal): Promise<MessageView[]> {
  const found: MessageView[] = [];
  for (let at = 0; at < ids.length; at += MAX_IDS) {
    const part = ids.slice(at, at + MAX_IDS);
    found.push(...(await call("search", { queue }, { ids: part, limit: part.length, budget: 10 }, aborted)).messages);
  }
  return found;
}

function said(verb: string, result: { done: string[]; failed: number }): string {
  const rest = result.failed ? ` ${plural(result.failed, "message")} could not be: no longer in the queue.` : "";
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
    cli: () => cliLine("message", "delay", queue, ...ids, "--for", delay.value || "0"),
    run: async () => {
      const wanted = seconds(delay.value);
      if (wanted === undefined) throw new Problem(0, "page", "Give a time such as 10m.");
      const before = new Map((await present(queue, ids)).map((each) => [each.id, each.due_at]));
      const result = await forEach(ids, (id) => call("edit_message", { queue, id }, { delay: wanted }));
      const undo = () =>
        void forEach(result.done, (id) => call("edit_message", { queue, id }, { delay: secondsUntil(before.get(id)) })).then((back) => (toast(said("due as before", back)), done?.()), toastProblem);
      return { text: said(`delayed by ${delay.value}`, result), undo };
    },
    done,
  });
}

/** How long until a time; 0 where there is none, or it has passed. */
function secondsUntil(time: string | null | undefined): number {
  return time ? Math.max(0, (Date.parse(time) - Date.now()) / 1000) : 0;
}

/** The fields of a message that a publish takes; with `restore` its past stays, too. */
export function draftOf(message: MessageView, keepsPast: boolean): NewMessage {
  const draft: NewMessage = {
    payload: message.payload,
    payload_encoding: message.payload_encoding as NewMessage["payload_encoding"],
    message_type: message.message_type,
    priority: message.priority,
    attributes: message.attributes,
    group: message.group,
  };
  if (message.payload_form === "json" && typeof message.payload === "string") draft.payload_encoding = "json";
  if (!keepsPast) return draft;
  return { ...draft, id: message.id, timestamp: message.timestamp, unique_key: message.unique_key, publisher: message.publisher, receive_count: message.receive_count, reason: message.reason, traceback: message.traceback, deaths: message.deaths };
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
      const messages = await present(queue, ids);
      const result = await forEach(
        messages.map((each) => each.id),
        (id) => call("cancel_message", { queue, id }),
      );
      const gone = new Set(result.done);
      const undo = () =>
        void call(
          "publish_batch",
          { queue, restore: true },
          messages.filter((each) => gone.has(each.id)).map((each) => draftOf(each, true)),
        ).then((back) => (toast(`${plural(back.count, "message")} restored at the end of ${queue}.`), done?.()), toastProblem);
      return { text: said("cancelled", result), undo: messages.length <= MAX_IDS ? undo : undefined };
    },
    done,
  });
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
  return cliLine("message", "edit", ...options, queue, id, ...(change.body === undefined ? [] : ["--", change.body]));
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
