/** Figures of a queue now and over time, what needs attention, who consumes, and its settings in short. */
import { openRedrive } from "../actions/redrive";
import { call } from "../api/client";
import { Button, Card, Facts, Figures, LinkButton, Time } from "../components/basics";
import { AgeChart, DepthChart, RateChart } from "../components/series_chart";
import { count, duration, plural, rate } from "../format";
import { useLoad } from "../load";
import { queues } from "../live";
import { SETTINGS } from "../api/schema";
import { formOf, show, titleOf } from "../queue/settings";
import { to } from "../router";
import { may } from "../session";
import type { TabProps } from "./queue";

/** Settings that are always shown; the others only where they are set. */
const ALWAYS = ["visibility_timeout", "dlq", "max_receives", "retention", "history"];
const PLAIN: Record<string, string> = { exhausted: "keep", overflow: "drop-head", dedup_window: "5m", delay: "0s" };

export function QueueOverview({ queue }: TabProps) {
  const { stats, name } = queue;
  const row = queues.value.get(name);
  return (
    <div class="stack">
      <Figures
        items={[
          { label: "In", value: rate(row?.inRate), note: "/s" },
          { label: "Out", value: rate(row?.outRate), note: "/s" },
          { label: "Ready", value: count(stats.ready) },
          { label: "In flight", value: count(stats.in_flight) },
          { label: "Delayed", value: count(stats.delayed) },
          { label: "Oldest", value: duration(stats.oldest_age) },
          { label: "Failing", value: rate(row?.failRate), note: "/s", tone: (row?.failRate ?? 0) > 0 ? "bad" : undefined },
        ]}
      />
      <div class="main-side">
        <div class="stack">
          <RateChart queue={name} />
          <DepthChart queue={name} />
          <AgeChart queue={name} />
        </div>
        <div class="stack">
          <QueueAttention queue={queue} />
          <ConsumersNow queue={name} />
          <SettingsSummary queue={queue} />
        </div>
      </div>
    </div>
  );
}

function QueueAttention({ queue }: Pick<TabProps, "queue">) {
  const { settings, stats, name } = queue;
  const dead = settings.dlq ? queues.value.get(settings.dlq) : undefined;
  const deadCount = dead ? dead.ready + dead.delayed : 0;
  const items: preact.ComponentChildren[] = [];
  if (settings.paused) items.push(<p key="p">❚❚ Paused: nothing is delivered until it is resumed.</p>);
  if (deadCount > 0 && settings.dlq) {
    const queueOfDead = settings.dlq;
    items.push(
      <div key="d" class="stack tight">
        <p>
          <span aria-hidden="true">✕ </span>
          {plural(deadCount, "message")} in <a href={to(["queues", queueOfDead])}>{queueOfDead}</a>
        </p>
        <div class="row">
          <LinkButton small href={to(["dead-letters"], { queue: queueOfDead })}>
            Look
          </LinkButton>
          {may("manage", queueOfDead) && (
            <Button small onClick={() => openRedrive({ queues: [queueOfDead] })}>
              Redrive {count(deadCount)}
            </Button>
          )}
        </div>
      </div>,
    );
  }
  const row = queues.value.get(name);
  if (stats.ready > 0 && stats.waiters === 0 && stats.in_flight === 0 && row?.outRate === 0 && (stats.oldest_age ?? 0) >= 60) {
    items.push(
      <p key="c">
        <span aria-hidden="true">▲ </span>Nobody consumes: {count(stats.ready)} ready, oldest {duration(stats.oldest_age)}.
      </p>,
    );
  }
  if (stats.limited > 0) items.push(<p key="l">Limits hold back {plural(stats.limited, "message")}.</p>);
  return (
    <Card title="Needs attention" flush>
      {items.length ? (
        <ul class="attention">
          {items.map((item, index) => (
            <li key={index}>{item}</li>
          ))}
        </ul>
      ) : (
        <p class="state">Nothing.</p>
      )}
    </Card>
  );
}

function ConsumersNow({ queue }: { queue: string }) {
  const loaded = useLoad((signal) => call("list_consumers", { queue, limit: 6 }, undefined, signal), [queue], 3);
  const list = loaded.value;
  return (
    <Card title="Consumers now" actions={<LinkButton small href={to(["queues", queue, "consumers"])}>All</LinkButton>} flush>
      {list && list.consumers.length > 0 ? (
        <ul class="attention">
          {list.consumers.map((each) => (
            <li key={`${each.connection} ${each.name}`}>
              <p>
                {each.name || each.peer} <span class="soft">{each.protocol}</span>
              </p>
              <p class="soft">
                holds {count(each.in_flight)}, since <Time at={each.since} ago />
              </p>
            </li>
          ))}
        </ul>
      ) : (
        <p class="state">{list ? "None is connected. Those that poll over SQS or REST are not listed." : loaded.problem ? loaded.problem.message : "Looking…"}</p>
      )}
    </Card>
  );
}

function SettingsSummary({ queue }: Pick<TabProps, "queue">) {
  const form = formOf(queue.settings);
  const shown = SETTINGS.filter((each) => {
    const value = form[each.name] ?? "";
    if (ALWAYS.includes(each.name)) return true;
    return value !== "" && value !== "false" && value !== "{}" && PLAIN[each.name] !== value && each.kind !== "retry";
  });
  return (
    <Card title="Settings" actions={<LinkButton small href={to(["queues", queue.name, "settings"])}>Change</LinkButton>}>
      <Facts items={shown.map((each) => [titleOf(each.name), show(each, queue.settings[each.name as keyof typeof queue.settings]) || "none"])} />
    </Card>
  );
}
