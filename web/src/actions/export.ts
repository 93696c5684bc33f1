/** Messages as a file of JSON lines, one page of a search after the other. */
import { call } from "../api/client";
import type { MessageFilter } from "../api/schema";
import { toast, toastProblem } from "../components/toast";
import { csvOf, plural } from "../format";

const PAGE = 500;
const BUDGET = 2;
/** A browser keeps the file in memory: `openq dlq export` has no limit. */
const MAX_MESSAGES = 100_000;

export async function exportMessages(queues: string[], filter: Partial<MessageFilter>, name: string): Promise<void> {
  const parts: string[] = [];
  let count = 0;
  try {
    for (const queue of queues) {
      let after: string | undefined = "";
      while (after !== undefined && count < MAX_MESSAGES) {
        const page: { messages: object[]; next?: string } = await call("search", { queue }, { state: "all", ...filter, limit: PAGE, budget: BUDGET, after });
        parts.push(page.messages.map((message) => `${JSON.stringify({ queue, ...message })}\n`).join(""));
        count += page.messages.length;
        after = page.next;
      }
    }
  } catch (error) {
    return toastProblem(error);
  }
  save(parts, "application/x-ndjson", `${name}.jsonl`);
  toast(count < MAX_MESSAGES ? `${plural(count, "message")} exported.` : `The first ${plural(count, "message")} exported; openq dlq export has no limit.`);
}

function save(parts: string[], type: string, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(parts, { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

export function exportCsv(head: string[], rows: unknown[][], name: string): void {
  save([csvOf([head, ...rows])], "text/csv", `${name}.csv`);
}
