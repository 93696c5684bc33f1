/** Messages as they were, before an action: read for its undo, and published again with their past. */
import type { MessageView, NewMessage, SearchReply } from "../api/schema";

/** Of one search, and of one batch. */
export const MAX_IDS = 1000;
/** Far below the largest request that a server takes. */
const MAX_BATCH_CHARACTERS = 4 << 20;

/**
 * The messages of the ids that are still in the queue. A search that ends early, by its time or by the size of its
 * answer, is repeated with the ids that it did not come to.
 */
export async function readPresent(ids: string[], search: (body: { ids: string[]; limit: number }) => Promise<SearchReply>): Promise<MessageView[]> {
  const found: MessageView[] = [];
  for (let at = 0; at < ids.length; at += MAX_IDS) {
    let left = ids.slice(at, at + MAX_IDS);
    while (left.length > 0) {
      const reply = await search({ ids: left, limit: left.length });
      found.push(...reply.messages);
      if (reply.complete || reply.messages.length === 0) break;
      const known = new Set(reply.messages.map((each) => each.id));
      left = left.filter((id) => !known.has(id));
    }
  }
  return found;
}

/** The fields of a message for a publish that restores it: its past, when it is due and when it expires. */
export function restoredDraft(message: MessageView, now = Date.now()): NewMessage {
  const draft: NewMessage = {
    payload: message.payload,
    payload_encoding: message.payload_encoding as NewMessage["payload_encoding"],
    message_type: message.message_type,
    priority: message.priority,
    attributes: message.attributes,
    group: message.group,
    id: message.id,
    timestamp: message.timestamp,
    unique_key: message.unique_key,
    publisher: message.publisher,
    receive_count: message.receive_count,
    reason: message.reason,
    traceback: message.traceback,
    deaths: message.deaths,
  };
  if (message.payload_form === "json" && typeof message.payload === "string") draft.payload_encoding = "json";
  const due = message.due_at ? Date.parse(message.due_at) : 0;
  // One that has become due meanwhile is ready, whatever the delay of the queue.
  if (due > now) draft.at = message.due_at;
  else draft.delay = 0;
  // The time to live counts from when a message is due.
  if (message.expires_at) draft.ttl = Math.max(1, Date.parse(message.expires_at) - Math.max(due, now)) / 1000;
  return draft;
}

/** The drafts in parts that are small enough for one request each. */
export function batches(drafts: NewMessage[], most = MAX_IDS, characters = MAX_BATCH_CHARACTERS): NewMessage[][] {
  const parts: NewMessage[][] = [];
  let size = 0;
  for (const draft of drafts) {
    const own = JSON.stringify(draft).length;
    const last = parts.at(-1);
    if (last && last.length < most && size + own <= characters) {
      last.push(draft);
      size += own;
    } else {
      parts.push([draft]);
      size = own;
    }
  }
  return parts;
}
