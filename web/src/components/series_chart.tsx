/** The charts of the overview and of a queue, from the built-in history. */
import { count, duration, plural, rate } from "../format";
import { useLoad } from "../load";
import { query, setQuery } from "../router";
import { added, isRange, loadSeries, perSecond, RANGES, refreshOf, type Range } from "../series";
import { Card, Choice, Show } from "./basics";
import { Chart } from "./chart";

export function useRange(): Range {
  const given = query.value.get("range");
  return isRange(given) ? given : "5m";
}

export function RangeChoice() {
  return <Choice label="Range" value={useRange()} options={RANGES} onChange={(range) => setQuery({ range: range === "5m" ? undefined : range })} />;
}

const RATES = ["published", "acked", "nacked", "lease_expired", "dead_lettered"];

/** Messages per second, in and out and failed. `queue` undefined: all queues. */
export function RateChart({ queue }: { queue?: string }) {
  const range = useRange();
  const loaded = useLoad((signal) => loadSeries(range, queue, RATES, signal), [range, queue], refreshOf(range));
  return (
    <Card title="Messages per second" actions={<RangeChoice />}>
      <Show of={loaded} lines={5}>
        {(series) => (
          <>
            <Chart
              label="Messages per second"
              times={series.times}
              format={rate}
              lines={[
                { title: "In", colour: "--chart-in", values: perSecond(series, "published") },
                { title: "Out", colour: "--chart-out", values: perSecond(series, "acked") },
                {
                  title: "Failed",
                  colour: "--chart-bad",
                  dashed: true,
                  // Deliveries that failed. The last one of a dead letter is among them.
                  values: added(perSecond(series, "nacked"), perSecond(series, "lease_expired")),
                },
                { title: "Dead-lettered", colour: "--chart-other", dashed: true, values: perSecond(series, "dead_lettered") },
              ]}
            />
            {series.queues !== undefined && <p class="soft">{ofWhich(series.queues)}</p>}
          </>
        )}
      </Show>
    </Card>
  );
}

/** For users who may not see the counts of all queues. */
function ofWhich(queues: number): string {
  if (queues === 0) return "None of the queues that you may see has a history: only the busiest queues of the server have one.";
  return `The sum of ${plural(queues, "queue")} that you may see. Only the busiest queues of the server have a history.`;
}

export function DepthChart({ queue }: { queue?: string }) {
  const range = useRange();
  const loaded = useLoad((signal) => loadSeries(range, queue, ["ready", "in_flight", "delayed"], signal), [range, queue], refreshOf(range));
  return (
    <Card title="Messages waiting">
      <Show of={loaded} lines={5}>
        {(series) => (
          <Chart
            label="Messages waiting"
            times={series.times}
            format={count}
            steps="whole"
            height={150}
            lines={[
              { title: "Ready", colour: "--chart-in", values: series.values.ready ?? [] },
              { title: "In flight", colour: "--chart-out", values: series.values.in_flight ?? [] },
              { title: "Delayed", colour: "--chart-other", dashed: true, values: series.values.delayed ?? [] },
            ]}
          />
        )}
      </Show>
    </Card>
  );
}

export function AgeChart({ queue }: { queue?: string }) {
  const range = useRange();
  const loaded = useLoad((signal) => loadSeries(range, queue, ["oldest_age", "wait", "publish_to_ack"], signal), [range, queue], refreshOf(range));
  return (
    <Card title="Age and waiting time">
      <Show of={loaded} lines={5}>
        {(series) => (
          <Chart
            label="Age and waiting time"
            times={series.times}
            format={duration}
            steps="time"
            height={150}
            lines={[
              { title: "Oldest", colour: "--chart-bad", values: series.values.oldest_age ?? [] },
              { title: "Wait", colour: "--chart-in", values: series.values.wait ?? [] },
              { title: "Publish to ack", colour: "--chart-other", dashed: true, values: series.values.publish_to_ack ?? [] },
            ]}
          />
        )}
      </Show>
    </Card>
  );
}
