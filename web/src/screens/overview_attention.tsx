/** "Needs attention": dead letters by reason, queues that nobody consumes. Each entry has the way to put it right. */
import { call } from "../api/client";
import type { DeadGroup } from "../api/schema";
import { openRedrive } from "../actions/redrive";
import { Button, Card, LinkButton } from "../components/basics";
import { count, duration, oneLine, plural } from "../format";
import { useLoad } from "../load";
import { queues, type QueueRow } from "../live";
import { to } from "../router";
import { mayChange } from "../session";

const UNATTENDED_SECONDS = 60;
const SHOWN = 6;

interface DeadEntry {
  queue: string;
  messages: number;
  groups: DeadGroup[];
}

async function loadDead(signal: AbortSignal): Promise<DeadEntry[]> {
  const { queues: found } = await call("list_dead_queues", {}, undefined, signal);
  const filled = found.filter((each) => each.messages > 0).sort((a, b) => b.messages - a.messages).slice(0, SHOWN);
  return Promise.all(
    filled.map(async (each) => ({
      queue: each.queue,
      messages: each.messages,
      groups: (await call("group_dead_letters", { queue: each.queue }, undefined, signal)).groups,
    })),
  );
}

/** Queues with messages that wait and nobody who takes them. */
export function unattended(rows: Iterable<QueueRow>, deadLetterQueues: Set<string>): QueueRow[] {
  return [...rows]
    .filter((row) => row.ready > 0 && row.consumers === 0 && row.inFlight === 0 && row.outRate === 0 && !deadLetterQueues.has(row.name))
    .filter((row) => (row.oldestAge ?? 0) >= UNATTENDED_SECONDS)
    .sort((a, b) => (b.oldestAge ?? 0) - (a.oldestAge ?? 0));
}

export function Attention() {
  const dead = useLoad(loadDead, [], 3);
  const deadNames = new Set([...queues.value.values()].map((row) => row.dlq).filter((name) => name !== null));
  const idle = unattended(queues.value.values(), deadNames);
  const paused = [...queues.value.values()].filter((row) => row.paused);
  const nothing = (dead.value?.length ?? 0) === 0 && idle.length === 0 && paused.length === 0;
  return (
    <Card title="Needs attention" flush>
      {nothing && <p class="state">{dead.value ? "Nothing. Every queue with messages has consumers, and there are no dead letters." : "Looking…"}</p>}
      <ul class="attention">
        {dead.value?.map((each) => <DeadItem key={each.queue} entry={each} reload={dead.reload} />)}
        {idle.slice(0, SHOWN).map((row) => (
          <li key={row.name}>
            <p>
              <span aria-hidden="true">▲ </span>
              <a href={to(["queues", row.name])}>{row.name}</a>: nobody consumes
            </p>
            <p class="soft">
              {count(row.ready)} ready, oldest {duration(row.oldestAge)}
            </p>
          </li>
        ))}
        {paused.slice(0, SHOWN).map((row) => (
          <li key={`paused ${row.name}`}>
            <p>
              <span aria-hidden="true">❚❚ </span>
              <a href={to(["queues", row.name])}>{row.name}</a> is paused
            </p>
          </li>
        ))}
      </ul>
    </Card>
  );
}

function DeadItem({ entry, reload }: { entry: DeadEntry; reload: () => void }) {
  return (
    <li>
      <p>
        <span class="bad" aria-hidden="true">
          ✕{" "}
        </span>
        <a href={to(["queues", entry.queue])}>{entry.queue}</a>: {plural(entry.messages, "dead letter")}
      </p>
      {entry.groups.slice(0, 2).map((group) => (
        <p class="soft" key={group.reason} title={group.sample}>
          {count(group.count)} × {oneLine(group.reason || "no reason given", 90)}
        </p>
      ))}
      <div class="row">
        <LinkButton small href={to(["dead-letters"], { queue: entry.queue })}>
          Look
        </LinkButton>
        {mayChange() && (
          <Button small onClick={() => openRedrive({ queue: entry.queue, done: reload })}>
            Redrive {count(entry.messages)}
          </Button>
        )}
      </div>
    </li>
  );
}
