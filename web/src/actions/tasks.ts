/** Long operations of the server: follow one to its end. */
import { call } from "../api/client";
import type { TaskView } from "../api/schema";
import { toast, toastProblem } from "../components/toast";
import { count, plural } from "../format";

export const RUNNING = "running";

/** Says when a long operation has ended. */
export function watchTask(id: string | undefined, done?: () => void): void {
  if (!id) return;
  const look = async () => {
    const task = await call("show_task", { id });
    if (task.state === RUNNING) return void setTimeout(() => void look().catch(() => undefined), 1000);
    const what = `${task.kind.charAt(0).toUpperCase()}${task.kind.slice(1)} of ${task.queue}`;
    const ended = task.state === "done" ? what : `${what} was ${task.state}`;
    if (task.error) toast(`${what}: ${task.error}`, "bad");
    else toast(`${ended}: ${[`${plural(task.done, "message")} done.`, ...outcomes(task)].join(" ")}`, task.state === "done" ? "good" : "", undoOf(task, done));
    done?.();
  };
  setTimeout(() => void look().catch(() => undefined), 300);
}

/** What a task says of its messages besides how many it did. */
export function outcomes(task: TaskView): string[] {
  const result = task.result ?? {};
  const texts: string[] = [];
  if (Number(result.failed_again) > 0) texts.push(`${count(Number(result.failed_again))} failed again.`);
  if (task.state === RUNNING && Number(result.waits_for) > 0) texts.push(`Waits until consumers are done with ${plural(Number(result.waits_for), "message")} that it sent.`);
  if (Number(result.not_transformed) > 0) texts.push(`${count(Number(result.not_transformed))} could not be changed and stayed.`);
  return texts;
}

/** The way back of a discard, as long as the server keeps the messages. */
export function undoOf(task: TaskView, done?: () => void): { title: string; run: () => void } | undefined {
  const { undo, undo_until: until } = task.result ?? {};
  if (typeof undo !== "string" || (typeof until === "string" && Date.parse(until) < Date.now())) return undefined;
  return { title: "Undo", run: () => void bringBack(task.queue, undo, done) };
}

/** Undoes a discard or a purge. */
export async function bringBack(queue: string, id: string, done?: () => void): Promise<void> {
  try {
    const back = await call("undo_removal", { queue, id });
    toast(`${plural(back.restored, "message")} restored in ${queue}.${back.failed ? ` ${count(back.failed)} could not be; try again.` : ""}`, back.failed ? "bad" : "good");
    done?.();
  } catch (error) {
    toastProblem(error);
  }
}
