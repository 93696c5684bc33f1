/**
 * Server-sent events, read with fetch: unlike EventSource it says why a stream is refused, and it can be ended
 * and begun again with a back-off of our own.
 */
import { openStream } from "./client";

export interface StreamEvent {
  event: string;
  data: string;
}

/** Takes text as it arrives, in pieces of any size; gives the events that are complete. */
export class EventParser {
  #rest = "";

  feed(text: string): StreamEvent[] {
    this.#rest += text;
    const parts = this.#rest.split(/\r?\n\r?\n/);
    this.#rest = parts.pop() ?? "";
    return parts.map(parseEvent).filter((each) => each !== undefined);
  }
}

function parseEvent(block: string): StreamEvent | undefined {
  let event = "message";
  const data: string[] = [];
  for (const line of block.split(/\r?\n/)) {
    // A line that begins with a colon is a comment: the server lives.
    if (line.startsWith("event:")) event = line.slice(6).trimStart();
    else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  return data.length ? { event, data: data.join("\n") } : undefined;
}

/** Reads until the stream ends. `onData` is called for every piece, `onEvent` for every event. */
export async function readEvents(path: string, signal: AbortSignal, onEvent: (event: StreamEvent) => void, onData?: () => void): Promise<void> {
  const response = await openStream(path, signal);
  const reader = response.body!.getReader();
  const decoder = new TextDecoder();
  const parser = new EventParser();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      onData?.();
      for (const event of parser.feed(decoder.decode(value, { stream: true }))) onEvent(event);
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

const FIRST_MS = 500;
const LONGEST_MS = 5_000;

/** How long to wait before attempt `failures` + 1: doubled each time, and different in every tab. */
export function backOff(failures: number, random: () => number = Math.random): number {
  const longest = Math.min(LONGEST_MS, FIRST_MS * 2 ** Math.max(0, failures - 1));
  return longest * (0.6 + 0.4 * random());
}
