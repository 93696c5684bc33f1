/** Long operations of the server: follow one to its end. */
import { call } from "../api/client";
import { toast } from "../components/toast";
import { plural } from "../format";

export const RUNNING = "running";

/** Says when a long operation has ended. */
export function watchTask(id: string | undefined, done?: () => void): void {
  if (!id) return;
  const look = async () => {
    const task = await call("show_task", { id });
    if (task.state === RUNNING) return void setTimeout(look, 1000);
    if (task.error) toast(`${task.kind} of ${task.queue}: ${task.error}`, "bad");
    else toast(`${task.kind} of ${task.queue}: ${plural(task.done, "message")} done.`);
    done?.();
  };
  setTimeout(() => void look().catch(() => undefined), 300);
}
