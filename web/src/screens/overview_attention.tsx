/** "Needs attention": alerts, dead letters by reason, queues that nobody consumes or that grow. Each entry has the way to put it right. */
import { call } from "../api/client";
import type { AlertItem, ReasonGroup } from "../api/schema";
import { openRedrive } from "../actions/redrive";
import { Button, Card, LinkButton } from "../components/basics";
import { count, duration, oneLine, plural } from "../format";
import { useLoad } from "../load";
import { queues, type QueueRow } from "../live";
import { to } from "../router";
import { isAdmin, may } from "../session";

const UNATTENDED_SECONDS = 60;
/** A backlog grows if it has been watched for so long, and became larger by so much. */
const GROWING_SECONDS = 60;
const GROWING_BY = 50;
const GROWING_SHARE = 1.2;
/** Of each kind: the list is read at a glance, the rest is behind a link. */
const SHOWN = 4;

interface DeadEntry {
  queue: string;
  messages: number;
  groups: { reason: string; sample: string; count: number }[];
}

async function loadDead(signal: AbortSignal): Promise<DeadEntry[]> {
  const [{ queues: found }, { groups }] = await Promise.all([call("list_dead_queues", {}, undefined, signal), call("group_all_dead_letters", { limit: 200, budget: 2 }, undefined, signal)]);
  return found
    .filter((each) => each.messages > 0)
    .sort((a, b) => b.messages - a.messages)
    .map((each) => ({ queue: each.queue, messages: each.messages, groups: groupsOf(each.queue, groups) }));
}

function groupsOf(queue: string, groups: ReasonGroup[]): DeadEntry["groups"] {
  return groups
    .flatMap((group) => group.queues.filter((part) => part.queue === queue).map((part) => ({ reason: group.reason, sample: group.samples[0]?.reason ?? "", count: part.count })))
    .sort((a, b) => b.count - a.count);
}

async function loadAlerts(signal: AbortSignal): Promise<AlertItem[]> {
  const { alerts } = await call("list_alerts", {}, undefined, signal);
  const order = ["critical", "warning", "info"];
  // Dead letters have lines of their own, with their reasons.
  return alerts.filter((each) => each.state === "firing" && !each.silenced && each.alert !== "dead-letters").sort((a, b) => order.indexOf(a.severity) - order.indexOf(b.severity));
}

/** Queues with messages that wait and nobody who takes them. */
export function unattended(rows: Iterable<QueueRow>, deadLetterQueues: Set<string>): QueueRow[] {
  return [...rows]
    .filter((row) => row.ready > 0 && row.consumers === 0 && row.inFlight === 0 && row.outRate === 0 && !row.paused && !deadLetterQueues.has(row.name))
    .filter((row) => (row.oldestAge ?? 0) >= UNATTENDED_SECONDS)
    .sort((a, b) => (b.oldestAge ?? 0) - (a.oldestAge ?? 0));
}

/** Queues that are consumed, and still become fuller. */
export function growing(rows: Iterable<QueueRow>, others: Set<string>): QueueRow[] {
  return [...rows]
    .filter((row) => !others.has(row.name) && isGrowing(row))
    .sort((a, b) => (b.growth?.by ?? 0) - (a.growth?.by ?? 0));
}

function isGrowing({ growth, ready }: QueueRow): boolean {
  return growth !== undefined && growth.seconds >= GROWING_SECONDS && growth.by >= GROWING_BY && ready >= (ready - growth.by) * GROWING_SHARE;
}

export function Attention() {
  const dead = useLoad(loadDead, [], 3);
  const alerts = useLoad((signal) => (isAdmin() ? loadAlerts(signal) : Promise.resolve([])), [], 3);
  const rows = [...queues.value.values()];
  const deadNames = new Set(rows.map((row) => row.dlq).filter((name) => name !== null));
  const idle = unattended(rows, deadNames);
  const grown = growing(rows, new Set([...deadNames, ...idle.map((row) => row.name)]));
  const paused = rows.filter((row) => row.paused);
  // What a list below says already, with a link to its queue, is not said twice.
  const said = new Set([...idle.flatMap((row) => [`nobody-consumes ${row.name}`, `oldest-message ${row.name}`]), ...grown.map((row) => `backlog-grows ${row.name}`)]);
  const others = (alerts.value ?? []).filter((each) => !said.has(`${each.alert} ${each.subject}`));
  const found = [others, dead.value ?? [], idle, grown, paused].reduce((sum, list) => sum + list.length, 0);
  return (
    <Card title={<>Needs attention {found > 0 && <span class="soft">{count(found)}</span>}</>} label="Needs attention" flush>
      {found === 0 && <p class="state">{dead.value ? "Nothing. Every queue with messages has consumers, and there are no dead letters." : "Looking…"}</p>}
      <ul class="attention">
        {others.slice(0, SHOWN).map((each) => (
          <li key={each.id}>
            <p>
              <span class={each.severity === "critical" ? "bad" : "warn"} aria-hidden="true">
                {each.severity === "critical" ? "✕ " : "▲ "}
              </span>
              <a href={to(["alerts"])}>{each.alert}</a>: {oneLine(each.summary, 160)}
            </p>
          </li>
        ))}
        <Rest of={others} href={to(["alerts"])} noun="alert" />
        {dead.value?.slice(0, SHOWN).map((each) => <DeadItem key={each.queue} entry={each} reload={dead.reload} />)}
        <Rest of={dead.value ?? []} href={to(["dead-letters"])} noun="queue" what="with dead letters" />
        {idle.slice(0, SHOWN).map((row) => (
          <li key={row.name}>
            <p>
              <span class="warn" aria-hidden="true">
                ▲{" "}
              </span>
              <a href={to(["queues", row.name])}>{row.name}</a>: nobody consumes
            </p>
            <p class="soft">
              {count(row.ready)} ready, oldest {duration(row.oldestAge)}
            </p>
          </li>
        ))}
        <Rest of={idle} href={to(["queues"], { sort: "-age" })} noun="queue" what="that nobody consumes" />
        {grown.slice(0, SHOWN).map((row) => (
          <li key={`grows ${row.name}`}>
            <p>
              <span class="warn" aria-hidden="true">
                ▲{" "}
              </span>
              <a href={to(["queues", row.name])}>{row.name}</a>: the backlog grows
            </p>
            <p class="soft">
              {count(row.growth?.by)} more in {duration(row.growth?.seconds)}, {count(row.ready)} ready
            </p>
          </li>
        ))}
        <Rest of={grown} href={to(["queues"], { sort: "-ready" })} noun="queue" what="that grow" />
        {paused.slice(0, SHOWN).map((row) => (
          <li key={`paused ${row.name}`}>
            <p>
              <span aria-hidden="true">❚❚ </span>
              <a href={to(["queues", row.name])}>{row.name}</a> is paused
            </p>
          </li>
        ))}
        <Rest of={paused} href={to(["queues"])} noun="queue" what="paused" />
      </ul>
    </Card>
  );
}

/** "and 12 more queues": a list here is a few lines long, however many there are. */
function Rest({ of, href, noun, what = "" }: { of: unknown[]; href: string; noun: string; what?: string }) {
  const more = of.length - SHOWN;
  if (more <= 0) return null;
  return (
    <li>
      <p>
        <a href={href}>and {plural(more, `more ${noun}`)}</a> <span class="soft">{what}</span>
      </p>
    </li>
  );
}

function DeadItem({ entry, reload }: { entry: DeadEntry; reload: () => void }) {
  const [top, second] = entry.groups;
  return (
    <li>
      <p>
        <span class="bad" aria-hidden="true">
          ✕{" "}
        </span>
        <a href={to(["queues", entry.queue])}>{entry.queue}</a>: {plural(entry.messages, "dead letter")}
      </p>
      {[top, second].map(
        (group) =>
          group && (
            <p class="soft" key={group.reason} title={group.sample}>
              {count(group.count)} × {oneLine(group.reason || "no reason given", 90)}
            </p>
          ),
      )}
      <div class="row">
        <LinkButton small href={to(["dead-letters"], { queue: entry.queue })}>
          Look
        </LinkButton>
        {may("manage", entry.queue) && (
          <Button small onClick={() => openRedrive({ queues: [entry.queue], done: reload })}>
            Redrive {count(entry.messages)}
          </Button>
        )}
      </div>
    </li>
  );
}
