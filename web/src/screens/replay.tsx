/** Replay: pick a span on a chart, preview, choose a target and a rate. */
import { signal } from "@preact/signals";

import { call, requestOf } from "../api/client";
import { cliLine } from "../api/lines";
import type { Replay as ReplayBody } from "../api/schema";
import { watchTask } from "../actions/tasks";
import { Button, Card, Empty, PageHead, Show } from "../components/basics";
import { Chart } from "../components/chart";
import { openAction } from "../components/dialog";
import { SelectField, TextField } from "../components/field";
import { RangeChoice, useRange } from "../components/series_chart";
import { TaskList } from "../components/task_list";
import { clock, plural, rate } from "../format";
import { useLoad } from "../load";
import { queues } from "../live";
import { query, setQuery } from "../router";
import { loadSeries, perSecond, refreshOf, secondsOf } from "../series";
import { mayChange } from "../session";

export default function Replay() {
  const names = [...queues.value.keys()].sort();
  const queue = query.value.get("queue") ?? names[0] ?? "";
  return (
    <div class="stack">
      <PageHead title="Replay" />
      {names.length === 0 ? (
        <Card>
          <Empty title="No queues">
            <p>A replay publishes past messages of a queue again, as far back as its history reaches.</p>
          </Empty>
        </Card>
      ) : (
        <Span queue={queue} names={names} />
      )}
      <TaskList kinds={["replay"]} />
    </div>
  );
}

function Span({ queue, names }: { queue: string; names: string[] }) {
  const range = useRange();
  const loaded = useLoad((aborted) => loadSeries(range, queue, ["published"], aborted), [range, queue], refreshOf(range));
  const since = Number(query.value.get("since")) || Math.floor(Date.now() / 1000) - secondsOf(range);
  return (
    <Card
      title="From when"
      actions={
        <>
          <SelectField label="Queue" value={queue} options={names.map((name) => [name, name] as const)} onValue={(value) => setQuery({ queue: value })} />
          <RangeChoice />
        </>
      }
    >
      <div class="stack">
        <Show of={loaded}>
          {(series) => (
            <Chart
              label={`Messages published to ${queue} per second`}
              times={series.times}
              format={rate}
              lines={[{ title: "Published", colour: "--chart-in", values: perSecond(series, "published") }]}
              onSpan={(from) => setQuery({ since: Math.floor(from) })}
            />
          )}
        </Show>
        <p class="soft">Drag over the chart to set the start, or type it. Messages from then on are published again; those that are still in the queue are skipped.</p>
        <div class="row">
          <TextField label="Start" type="datetime-local" step="1" value={localInput(since)} onValue={(value) => setQuery({ since: secondsOfInput(value) })} />
          {mayChange() && (
            <Button kind="primary" onClick={() => openReplay(queue, since)}>
              Preview the replay…
            </Button>
          )}
        </div>
      </div>
    </Card>
  );
}

/** Seconds since the epoch as the value of an input for local time, and back. */
export function localInput(seconds: number): string {
  const date = new Date(seconds * 1000);
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

export function secondsOfInput(text: string): number | undefined {
  const seconds = Math.floor(new Date(text).getTime() / 1000);
  return Number.isNaN(seconds) ? undefined : seconds;
}

function openReplay(queue: string, seconds: number): void {
  const to = signal("");
  const rate = signal("");
  const text = signal("");
  const since = new Date(seconds * 1000).toISOString();
  const body = (dryRun: boolean): ReplayBody => ({
    since,
    to: to.value || null,
    rate: rate.value ? Number(rate.value) : null,
    filter: text.value ? { text: text.value } : null,
    dry_run: dryRun,
  });
  openAction({
    title: `Replay ${queue}`,
    verb: "Replay",
    key: () => `${to.value} ${text.value}`,
    count: async (aborted) => (await call("replay", { queue }, body(true), aborted)).total ?? 0,
    body: () => (
      <div class="stack">
        <p>Messages that were published since {clock(seconds * 1000)} are published again with their ids.</p>
        <div class="form-grid">
          <TextField label="To another queue" placeholder={queue} value={to.value} onValue={(value) => (to.value = value)} />
          <TextField label="Messages per second" type="number" min="0.1" step="any" placeholder="no limit" value={rate.value} onValue={(value) => (rate.value = value)} />
          <TextField label="Only with this text in the body" value={text.value} onValue={(value) => (text.value = value)} />
        </div>
      </div>
    ),
    request: () => requestOf("replay", { queue }, body(false)),
    cli: () => cliLine("replay", queue, "--since", since, to.value && "--to", to.value || undefined, rate.value && "--rate", rate.value || undefined, text.value && "--text", text.value || undefined),
    run: async () => {
      const task = await call("replay", { queue }, body(false));
      watchTask(task.id);
      return `Replay of ${plural(task.total ?? 0, "message")} has started.`;
    },
  });
}
