/** Replay: pick a span on a chart, filter, see what it would take, choose a target and a rate. */
import { signal } from "@preact/signals";
import { useMemo, useState } from "preact/hooks";

import { filterFlags } from "../actions/discard";
import { call, requestOf } from "../api/client";
import { cliLine } from "../api/lines";
import type { MessageFilter, Replay as ReplayBody, ReplayPreview } from "../api/schema";
import { watchTask } from "../actions/tasks";
import { Bars } from "../components/bars";
import { Button, Card, Empty, Facts, PageHead, Show, Time } from "../components/basics";
import { Chart } from "../components/chart";
import { openAction } from "../components/dialog";
import { CheckField, SelectField, TextField } from "../components/field";
import { QueueNames } from "../components/queue_names";
import { RangeChoice, useRange } from "../components/series_chart";
import { TaskList } from "../components/task_list";
import { bytes, clock, count, localInput, plural, rate, secondsOfInput } from "../format";
import { useLoad } from "../load";
import { queues } from "../live";
import { parseSearch } from "../messages/search_syntax";
import { query, setQuery, to } from "../router";
import { loadSeries, perSecond, refreshOf, secondsOf } from "../series";
import { may } from "../session";

interface Chosen {
  queue: string;
  /** Seconds since the epoch; `until` undefined: now. */
  since: number;
  until: number | undefined;
  filter: Partial<MessageFilter> | null;
}

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
  const opened = useMemo(() => Math.floor(Date.now() / 1000), [range]);
  const since = Number(query.value.get("since")) || opened - secondsOf(range);
  const until = Number(query.value.get("until")) || undefined;
  const text = query.value.get("q") ?? "";
  const { filter, problems } = useMemo(() => parseSearch(text), [text]);
  const isBackwards = until !== undefined && until <= since;
  const chosen: Chosen = { queue, since, until, filter: text.trim() ? filter : null };
  return (
    <Card
      title="Which messages"
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
              span={[since, until ?? Date.now() / 1000]}
              onSpan={(from, end) => setQuery({ since: Math.floor(from), until: Math.ceil(end) })}
            />
          )}
        </Show>
        <p class="soft">Drag over the chart to choose a span, or type it. Messages of the span are published again with their ids; those that are still in the queue are left out.</p>
        <div class="form-grid dates">
          <TextField label="From" type="datetime-local" step="1" value={localInput(since)} onValue={(value) => setQuery({ since: secondsOfInput(value) })} />
          <TextField
            label="Until"
            type="datetime-local"
            step="1"
            value={until === undefined ? "" : localInput(until)}
            onValue={(value) => setQuery({ until: secondsOfInput(value) })}
            help={until === undefined ? "Empty: now" : undefined}
            wrong={isBackwards ? "Before its start" : undefined}
          />
          <TextField label="Only those that match" placeholder="text, colour:red, body.total=12" value={text} onValue={(value) => setQuery({ q: value })} wrong={problems[0]} />
        </div>
        {!isBackwards && problems.length === 0 && <Preview chosen={chosen} />}
        {may("manage", queue) && (
          <div class="row">
            <Button kind="primary" disabled={isBackwards || problems.length > 0} onClick={() => openReplay(chosen)}>
              Replay…
            </Button>
          </div>
        )}
      </div>
    </Card>
  );
}

function previewBody({ since, until, filter }: Chosen, budget: number) {
  return { since: iso(since), until: until === undefined ? null : iso(until), filter, buckets: 48, budget };
}

/** Seconds of search for a preview: at first, and at most. */
const BUDGET = 2;
const MAX_BUDGET = 10;

/** Changes nothing. While somebody types it is behind by a moment. */
function Preview({ chosen }: { chosen: Chosen }) {
  const { queue, since, until, filter } = chosen;
  const asked = JSON.stringify([queue, since, until, filter]);
  // How long to search belongs to what was asked: another question begins anew.
  const [longer, setLonger] = useState({ asked, budget: BUDGET });
  const budget = longer.asked === asked ? longer.budget : BUDGET;
  const loaded = useLoad(
    async (aborted) => {
      await pauseTyping(aborted);
      return call("preview_replay", { queue }, previewBody(chosen, budget), aborted);
    },
    [asked, budget],
  );
  const goOn = budget < MAX_BUDGET ? () => setLonger({ asked, budget: Math.min(budget * 3, MAX_BUDGET) }) : undefined;
  return <Show of={loaded} lines={2}>{(found) => <Found of={found} queue={queue} budget={budget} goOn={goOn} />}</Show>;
}

function pauseTyping(aborted: AbortSignal): Promise<void> {
  return new Promise((done, failed) => {
    const timer = setTimeout(done, 250);
    aborted.addEventListener("abort", () => (clearTimeout(timer), failed(new DOMException("typing", "AbortError"))));
  });
}

function Found({ of, queue, budget, goOn }: { of: ReplayPreview; queue: string; budget: number; goOn?: () => void }) {
  return (
    <div class="preview" aria-live="polite">
      <Bars values={of.counts} label={`${plural(of.matched, "message")} between ${clock(of.since)} and ${clock(of.until)}`} />
      <Facts
        items={[
          [of.complete ? "Found" : "Found so far", <b>{of.matched === 0 ? "No message of the span matches." : `${plural(of.matched, "message")}, ${bytes(of.bytes)}`}</b>],
          ...(of.complete ? [] : ([
                [
                  "Searched",
                  <span class="row">
                    {count(of.scanned)} messages in {budget} seconds, up to {clock(of.scanned_until)}
                    {goOn ? (
                      <Button small onClick={goOn}>
                        Search on
                      </Button>
                    ) : (
                      <span class="soft">The replay itself searches the whole span.</span>
                    )}
                  </span>,
                ],
              ] as [string, preact.ComponentChildren][])),
          ...(of.samples.length
            ? ([
                [
                  "The first",
                  <span class="row">
                    {of.samples.map((each) => (
                      <a key={each.id} class="mono" href={to(["messages", each.id], { queue })}>
                        …{each.id.slice(-8)}
                      </a>
                    ))}
                    <span class="soft">
                      from <Time at={of.samples[0]!.time} />
                    </span>
                  </span>,
                ],
              ] as [string, preact.ComponentChildren][])
            : []),
        ]}
      />
    </div>
  );
}

function iso(seconds: number): string {
  return new Date(seconds * 1000).toISOString();
}

function openReplay({ queue, since, until, filter }: Chosen): void {
  const target = signal("");
  const rate = signal("");
  const purged = signal(false);
  const body = (dryRun: boolean): ReplayBody => ({
    since: iso(since),
    ...(until === undefined ? {} : { until: iso(until) }),
    to: target.value || null,
    rate: rate.value ? Number(rate.value) : null,
    filter,
    ...(purged.value ? { include_purged: true } : {}),
    dry_run: dryRun,
  });
  openAction({
    title: `Replay ${queue}`,
    verb: "Replay",
    key: () => `${target.value} ${purged.value}`,
    count: async (aborted) => (await call("replay", { queue }, body(true), aborted)).total ?? 0,
    body: () => (
      <div class="stack">
        <p>
          Messages that were published {until === undefined ? `since ${clock(since * 1000)}` : `from ${clock(since * 1000)} to ${clock(until * 1000)}`} are published again with their ids.
        </p>
        <div class="form-grid">
          <TextField label="To another queue" placeholder={queue} value={target.value} onValue={(value) => (target.value = value)} list="replay-queues" autocomplete="off" />
          <TextField label="Messages per second" type="number" min="0.1" step="any" placeholder="no limit" value={rate.value} onValue={(value) => (rate.value = value)} />
        </div>
        <QueueNames id="replay-queues" without={queue} />
        <CheckField label="Messages that were purged, too" checked={purged.value} onValue={(value) => (purged.value = value)} />
      </div>
    ),
    request: () => requestOf("replay", { queue }, body(false)),
    cli: () =>
      cliLine(
        "replay",
        queue,
        "--since",
        iso(since),
        until !== undefined && "--until",
        until !== undefined && iso(until),
        ...filterFlags(filter ?? undefined),
        target.value && "--to",
        target.value,
        rate.value && "--rate",
        rate.value,
        purged.value && "--include-purged",
      ),
    run: async () => {
      const task = await call("replay", { queue }, body(false));
      watchTask(task.id);
      return `Replay of ${plural(task.total ?? 0, "message")} has started.`;
    },
  });
}
