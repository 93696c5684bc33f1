/** Suggestions for a field that takes the name of a queue: `<TextField list={id}>` beside `<QueueNames id={id}>`. */
import { queues } from "../live";

const SHOWN = 500;

export function QueueNames({ id, without }: { id: string; without?: string }) {
  return (
    <datalist id={id}>
      {[...queues.value.keys()].filter((name) => name !== without).slice(0, SHOWN).map((name) => (
        <option key={name} value={name} />
      ))}
    </datalist>
  );
}
