/** The last results of the jobs on Spark that were published to this server, as plots. */
import { call } from "../api/client";
import { exportCsv } from "../actions/export";
import { Badge, Button, Card, Choice, Empty, Figures, Notice, Show, Time } from "../components/basics";
import { Boundary } from "../components/boundary";
import { Bars } from "../components/bars";
import { Chart, type Line } from "../components/chart";
import { CopyLine } from "../components/code";
import { HeatMap } from "../components/heat_map";
import { SelectField } from "../components/field";
import { DataTable, type Column } from "../components/table";
import { count, duration, oneLine, plural, rate } from "../format";
import { useLoad } from "../load";
import { BUCKET, hoursOf, readAnalytics, readTriage, timesOf, type Analytics, type Failure, type Points, type QueueTotal, type Triage, type TriageGroup } from "../pipeline/results";
import { query, setQuery, to } from "../router";
import { fromBase64, utf8 } from "../messages/decode";

interface Results {
  analytics?: Analytics;
  triage?: Triage;
}

async function loadResults(aborted: AbortSignal): Promise<Results> {
  // The list has those buckets that the user may read; asking for a value would be an error for others.
  const { buckets } = await call("list_buckets", {}, undefined, aborted);
  if (!buckets.some((each) => each.name === BUCKET)) return {};
  const { entries } = await call("get_values", { bucket: BUCKET }, { keys: ["analytics", "triage"] }, aborted);
  const [analytics, triage] = entries.map((entry) => (typeof entry?.value === "string" ? utf8(fromBase64(entry.value)) : undefined));
  return { analytics: readAnalytics(analytics), triage: readTriage(triage) };
}

export function Results() {
  const loaded = useLoad(loadResults, [], 15);
  return (
    <Show of={loaded} lines={4}>
      {({ analytics, triage }) => (
        <>
          <Boundary about={analytics} instead={<Unreadable job="analytics" />}>
            <AnalyticsCard of={analytics} />
          </Boundary>
          <Boundary about={triage} instead={<Unreadable job="triage" />}>
            <TriageCard of={triage} />
          </Boundary>
        </>
      )}
    </Show>
  );
}

function Unreadable({ job }: { job: "analytics" | "triage" }) {
  return (
    <NoResults title={job === "analytics" ? "Analytics" : "Triage"} line={`openq pipeline ${job} --url ${location.origin} --publish`}>
      The results on this server cannot be read: another version of OpenQ wrote them. A new run replaces them:
    </NoResults>
  );
}

function NoResults({ title, line, children }: { title: string; line: string; children: preact.ComponentChildren }) {
  return (
    <Card title={title}>
      <div class="stack tight">
        <p class="soft">{children}</p>
        <CopyLine text={line} />
      </div>
    </Card>
  );
}

// -- analytics ---------------------------------------------------------------------------------

const WHAT = [
  ["rates", "Rates"],
  ["wait", "Waiting"],
  ["processing", "Work"],
] as const;
type What = (typeof WHAT)[number][0];

function AnalyticsCard({ of }: { of: Analytics | undefined }) {
  if (!of) {
    return (
      <NoResults title="Analytics" line={`openq pipeline analytics --url ${location.origin} --publish`}>
        Rates, waiting times and failures of each queue over the whole history. There are no results on this server yet:
      </NoResults>
    );
  }
  if (!of.plots) return <Notice>The last run of analytics found no events.</Notice>;
  const names = Object.keys(of.plots.queues);
  const given = query.value.get("queue") ?? "";
  const queue = names.includes(given) ? given : (names[0] ?? "");
  const given_what = query.value.get("plot");
  const what: What = WHAT.find(([id]) => id === given_what)?.[0] ?? "rates";
  const points = of.plots.queues[queue];
  const times = timesOf(of.plots);
  const sum = (name: keyof QueueTotal) => of.queues.reduce((total, each) => total + Number(each[name] ?? 0), 0);
  return (
    <Card
      title="Analytics"
      actions={
        <span class="soft">
          made <Time at={of.made} ago />, <Time at={of.from / 1000} /> to <Time at={of.until / 1000} />
        </span>
      }
    >
      <div class="stack">
        <Figures
          items={[
            { label: "Published", value: count(sum("published")) },
            { label: "Acknowledged", value: count(sum("acked")) },
            { label: "Retried", value: count(sum("retried")) },
            { label: "Dead letters", value: count(sum("dead_lettered")), tone: sum("dead_lettered") ? "bad" : undefined },
          ]}
        />
        {points && (
          <>
            <div class="row between">
              <SelectField label="Queue" value={queue} options={names.map((name) => [name, name] as const)} onValue={(value) => setQuery({ queue: value })} />
              <Choice<What> label="Plot" value={what} options={WHAT} onChange={(next) => setQuery({ plot: next === "rates" ? undefined : next })} />
            </div>
            <div class="row end">
              <Button small onClick={() => exportCsv(["time", ...Object.keys(points)], times.map((time, at) => [new Date(time * 1000).toISOString(), ...Object.values(points).map((values) => values[at])]), `analytics-${queue}`)}>
                Windows as CSV
              </Button>
              <Button small onClick={() => exportCsv(Object.keys(of.queues[0] ?? {}), of.queues.map((each) => Object.values(each)), "analytics-queues")}>
                Queues as CSV
              </Button>
            </div>
            <Chart label={`${WHAT.find(([id]) => id === what)![1]} of ${queue}`} times={times} format={what === "rates" ? rate : (value) => duration(value)} lines={linesOf(points, what, of.plots.step_us / 1e6)} height={180} />
            <HeatMap label={`Messages published to ${queue} by day and hour`} cells={hoursOf(times, points.published)} />
          </>
        )}
        <DataTable caption="Queues" columns={QUEUES} rows={of.queues} rowKey={(row) => row.queue} sort="-published" />
        {of.failures.length > 0 && <DataTable caption="The most frequent failures" captionShown columns={FAILURES} rows={of.failures.slice(0, 10)} rowKey={(row) => JSON.stringify([row.queue, row.event, row.error_signature, row.type])} />}
      </div>
    </Card>
  );
}

function linesOf(points: Points, what: What, step: number): Line[] {
  const seconds = (values: (number | null)[]) => values.map((value) => (value === null ? null : value / 1e6));
  if (what !== "rates") {
    return (["p50", "p90", "p99"] as const).map((name, index) => ({ title: name, colour: ["--chart-in", "--chart-other", "--chart-bad"][index]!, values: seconds(points[`${what}_${name}_us`]) }));
  }
  const perSecond = (values: number[]) => values.map((value) => value / step);
  return [
    { title: "Published", colour: "--chart-in", values: perSecond(points.published) },
    { title: "Acknowledged", colour: "--chart-out", values: perSecond(points.acked) },
    { title: "Retried", colour: "--chart-other", values: perSecond(points.retried) },
    { title: "Dead letters", colour: "--chart-bad", dashed: true, values: perSecond(points.dead_lettered) },
  ];
}

const spanOf = (us: number | null | undefined) => (us === null || us === undefined ? "–" : duration(us / 1e6));

const QUEUES: Column<QueueTotal>[] = [
  { id: "queue", title: "Queue", name: true, sort: (row) => row.queue, cell: (row) => <a href={to(["queues", row.queue])}>{row.queue}</a> },
  { id: "published", title: "Published", num: true, sort: (row) => row.published, cell: (row) => count(row.published) },
  { id: "acked", title: "Acknowledged", num: true, sort: (row) => row.acked, cell: (row) => count(row.acked) },
  { id: "retried", title: "Retried", num: true, sort: (row) => row.retried, cell: (row) => count(row.retried) },
  { id: "dead", title: "Dead letters", num: true, sort: (row) => row.dead_lettered, cell: (row) => count(row.dead_lettered) },
  { id: "waiting", title: "Waiting", num: true, sort: (row) => row.waiting, cell: (row) => count(row.waiting) },
  { id: "wait", title: "Wait p99", num: true, sort: (row) => row.wait?.p99_us, cell: (row) => spanOf(row.wait?.p99_us) },
  { id: "work", title: "Work p99", num: true, sort: (row) => row.processing?.p99_us, cell: (row) => spanOf(row.processing?.p99_us) },
];

const FAILURES: Column<Failure>[] = [
  { id: "signature", title: "Failure", cut: true, cell: (row) => oneLine(row.error_signature || row.event.replaceAll("_", " "), 120) },
  { id: "event", title: "What happened", cell: (row) => row.event.replaceAll("_", " ") },
  { id: "queue", title: "Queue", cell: (row) => <a href={to(["queues", row.queue])}>{row.queue}</a> },
  { id: "count", title: "Count", num: true, sort: (row) => row.count, cell: (row) => count(row.count) },
  { id: "last", title: "Last", num: true, sort: (row) => row.last_seen, cell: (row) => <Time at={row.last_seen / 1000} ago /> },
];

// -- triage ------------------------------------------------------------------------------------

function TriageCard({ of }: { of: Triage | undefined }) {
  if (!of) {
    return (
      <NoResults title="Triage" line={`openq pipeline triage --url ${location.origin} --publish`}>
        Dead letters of the whole history by cause, with advice for each group. There are no results on this server yet:
      </NoResults>
    );
  }
  return (
    <Card
      title="Triage"
      flush
      actions={
        <span class="soft row">
          {of.groups.length > 0 && (
            <Button small onClick={() => exportCsv(Object.keys(of.groups[0]!), of.groups.map((each) => Object.values(each)), "triage")}>
              CSV
            </Button>
          )}
          {plural(of.total, "dead letter")} in {plural(of.groups_in_all, "group")}, made <Time at={of.made} ago />
        </span>
      }
    >
      <DataTable caption="Dead letters by cause" columns={GROUPS} rows={of.groups} rowKey={(row) => JSON.stringify([row.source, row.dead_queue, row.type, row.signature])} empty={<Empty title="No dead letters" />} />
    </Card>
  );
}

const GROUPS: Column<TriageGroup>[] = [
  {
    id: "signature",
    title: "Cause and advice",
    cell: (row) => (
      <>
        <p>{oneLine(row.signature || "no reason given", 120)}</p>
        <p class="soft">{row.advice}</p>
      </>
    ),
  },
  { id: "from", title: "From", sort: (row) => row.source, cell: (row) => <a href={to(["queues", row.dead_queue])}>{row.source}</a> },
  { id: "count", title: "Count", num: true, sort: (row) => row.count, cell: (row) => count(row.count) },
  { id: "there", title: "Still there", num: true, sort: (row) => row.there, cell: (row) => (row.there ? count(row.there) : <Badge tone="good">none</Badge>) },
  { id: "trend", title: "When", cell: (row) => <Bars values={row.timeline} label={`${plural(row.count, "dead letter")} over time`} /> },
  { id: "last", title: "Last", num: true, sort: (row) => row.last_seen, cell: (row) => <Time at={row.last_seen} ago /> },
];
