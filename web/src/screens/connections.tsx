/** Who is connected, by which protocol, what they hold; and the consumers of queues. */
import { useRef } from "preact/hooks";

import { mayClose, openClose } from "../actions/connections";
import { call } from "../api/client";
import type { ConnectionView, ConsumerView, LossWindowView, ServerLine } from "../api/schema";
import { Badge, Button, Card, Empty, PageHead, Show, Tabs, Time } from "../components/basics";
import { FilterBox, SelectField } from "../components/field";
import { DataTable, type Column } from "../components/table";
import { count, duration, plural, rate } from "../format";
import { useLoad } from "../load";
import { query, setQuery, to, words } from "../router";
import { maySeeServer } from "../session";
import { Connection } from "./connection";

const PROTOCOLS = [
  ["", "All protocols"],
  ["amqp", "AMQP"],
  ["ws", "WebSocket"],
  ["sse", "Events (SSE)"],
] as const;
type Protocol = (typeof PROTOCOLS)[number][0];

export default function Connections() {
  const tab = words.value[1] ?? "connections";
  if (!["connections", "consumers", "servers"].includes(tab)) return <Connection id={tab} />;
  return (
    <>
      <PageHead title="Connections" />
      <Tabs
        label="Clients"
        current={tab}
        items={[
          { id: "connections", title: "Connections", href: to(["connections"]) },
          { id: "consumers", title: "Consumers", href: to(["connections", "consumers"]) },
          ...(maySeeServer() ? [{ id: "servers", title: "Servers", href: to(["connections", "servers"]) }] : []),
        ]}
      />
      {tab === "consumers" ? <Consumers /> : tab === "servers" ? <Servers /> : <ConnectionTable />}
    </>
  );
}

function ConnectionTable() {
  const protocol = (query.value.get("protocol") ?? "") as Protocol;
  const text = (query.value.get("filter") ?? "").toLowerCase();
  const loaded = useLoad((aborted) => call("list_connections", { protocol: protocol || undefined, limit: 1000 }, undefined, aborted), [protocol], 2);
  const rows = (loaded.value?.connections ?? []).filter((row) => searchText(row).includes(text));
  const http = loaded.value?.http;
  const rates = useRates(loaded.value?.connections);
  return (
    <div class="stack">
      {http && (
        <p class="soft">
          HTTP: {plural(http.connections, "connection")}, {count(http.busy)} busy, {count(http.waiting)} in a long poll.
        </p>
      )}
      <Card
        title={<>Open connections {loaded.value && <span class="soft">{count(loaded.value.total)}</span>}</>}
        label="Open connections"
        flush
        actions={
          <>
            <SelectField label="Protocol" value={protocol} options={PROTOCOLS} onValue={(value) => setQuery({ protocol: value })} />
            <FilterBox label="Filter by peer, user, queue" value={text} onValue={(filter) => setQuery({ filter })} />
          </>
        }
      >
        <Show of={loaded}>
          {() => (
            <DataTable
              caption="Open connections"
              columns={connectionColumns(rates, loaded.reload)}
              rows={rows}
              rowKey={(row) => row.id}
              sort="-in_flight"
              empty={
                <Empty title={text || protocol ? "No such connection" : "Nobody is connected"}>
                  <p>AMQP, WebSocket and event-stream clients are listed here while they are connected. SQS and REST requests are counted above.</p>
                </Empty>
              }
            />
          )}
        </Show>
      </Card>
    </div>
  );
}

export function searchText(row: Pick<ConnectionView, "peer" | "user" | "client" | "name" | "queues">): string {
  return [row.peer, row.user, row.client, row.name, ...row.queues].join(" ").toLowerCase();
}

interface Rates {
  in: number | undefined;
  out: number | undefined;
}

/** Messages per second since the answer before: the server counts, and keeps no rates of connections. */
export function useRates(rows: ConnectionView[] | undefined): Map<string, Rates> {
  const seen = useRef({ rows, at: 0, before: new Map<string, ConnectionView>(), rates: new Map<string, Rates>() });
  const last = seen.current;
  if (rows && rows !== last.rows) {
    const now = performance.now();
    const spent = (now - last.at) / 1000;
    const perSecond = (value: number, old: number | undefined) => (old === undefined || spent <= 0 ? undefined : Math.max(0, value - old) / spent);
    const rates = new Map(rows.map((row) => [row.id, { in: perSecond(row.published, last.before.get(row.id)?.published), out: perSecond(row.delivered, last.before.get(row.id)?.delivered) }]));
    seen.current = { rows, at: now, before: new Map(rows.map((row) => [row.id, row])), rates };
  }
  return seen.current.rates;
}

function connectionColumns(rates: Map<string, Rates>, reload: () => void): Column<ConnectionView>[] {
  return [
    {
      id: "peer",
      title: "Peer",
      name: true,
      sort: (row) => row.peer,
      cell: (row) => (
        <>
          <a class="nowrap" href={to(["connections", row.id])}>{row.peer}</a> {row.tls && <Badge>TLS</Badge>} {row.last_error && <Badge tone="warn" title={row.last_error}>▲ had an error</Badge>}
        </>
      ),
    },
    { id: "protocol", title: "Protocol", sort: (row) => row.protocol, cell: (row) => row.protocol },
    { id: "user", title: "User", sort: (row) => row.user, cell: (row) => row.user || "–" },
    { id: "client", title: "Client", cut: true, sort: (row) => row.client, cell: (row) => <ClientName of={row} /> },
    { id: "queues", title: "Queues", cut: true, cell: (row) => <QueueLinks names={row.queues} /> },
    { id: "consumers", title: "Consumers", num: true, sort: (row) => row.consumers, cell: (row) => count(row.consumers) },
    { id: "in_flight", title: "In flight", num: true, sort: (row) => row.in_flight, cell: (row) => count(row.in_flight) },
    { id: "in", title: "In/s", num: true, sort: (row) => rates.get(row.id)?.in, cell: (row) => shownRate(rates.get(row.id)?.in) },
    { id: "out", title: "Out/s", num: true, sort: (row) => rates.get(row.id)?.out, cell: (row) => shownRate(rates.get(row.id)?.out) },
    { id: "since", title: "Since", num: true, sort: (row) => row.since, cell: (row) => <Time at={row.since} ago /> },
    {
      id: "close",
      title: "Action",
      num: true,
      cell: (row) =>
        mayClose(row) ? (
          <Button small aria-label={`Close the connection of ${row.peer}`} onClick={() => openClose(row, reload)}>
            Close…
          </Button>
        ) : null,
    },
  ];
}

export function shownRate(value: number | undefined): string {
  return value === undefined ? "–" : rate(value);
}

/** As it calls itself, and the library that it uses. */
function ClientName({ of: { name, client } }: { of: ConnectionView }) {
  if (!name || !client) return <>{name || client || "–"}</>;
  return (
    <span title={`${name} · ${client}`}>
      {name} <span class="soft">{client}</span>
    </span>
  );
}

function QueueLinks({ names }: { names: string[] }) {
  if (names.length === 0) return <>–</>;
  return (
    <>
      {names.slice(0, 3).map((name, index) => (
        <>
          {index > 0 && ", "}
          <a href={to(["queues", name])}>{name}</a>
        </>
      ))}
      {names.length > 3 && ` and ${names.length - 3} more`}
    </>
  );
}

const CONSUMER_COLUMNS: Column<ConsumerView>[] = [
  { id: "queue", title: "Queue", name: true, sort: (row) => row.queue, cell: (row) => <a href={to(["queues", row.queue])}>{row.queue}</a> },
  { id: "name", title: "Consumer", cut: true, sort: (row) => row.name, cell: (row) => row.name || "–" },
  { id: "protocol", title: "Protocol", sort: (row) => row.protocol, cell: (row) => row.protocol },
  { id: "peer", title: "Peer", sort: (row) => row.peer, cell: (row) => row.peer },
  { id: "user", title: "User", sort: (row) => row.user, cell: (row) => row.user || "–" },
  { id: "credit", title: "Credit", num: true, sort: (row) => row.credit ?? Infinity, cell: (row) => (row.credit === null ? "no limit" : count(row.credit)) },
  { id: "in_flight", title: "In flight", num: true, sort: (row) => row.in_flight, cell: (row) => count(row.in_flight) },
  { id: "state", title: "State", cell: (row) => (row.active ? <Badge tone="good">active</Badge> : <Badge>waits for its turn</Badge>) },
  { id: "since", title: "Since", num: true, sort: (row) => row.since, cell: (row) => <Time at={row.since} ago /> },
];

/** The consumers of a queue, or of all. */
export function Consumers({ queue }: { queue?: string }) {
  const loaded = useLoad((aborted) => call("list_consumers", { queue, limit: 1000 }, undefined, aborted), [queue], 2);
  return (
    <Card title="Consumers" flush>
      <Show of={loaded}>
        {(found) => (
          <DataTable
            caption="Consumers"
            columns={queue ? CONSUMER_COLUMNS.slice(1) : CONSUMER_COLUMNS}
            rows={found.consumers}
            rowKey={(row) => `${row.connection} ${row.channel} ${row.name} ${row.queue} ${row.since}`}
            empty={
              <Empty title="No consumers">
                <p>Consumers that stay connected are listed here: AMQP, WebSocket, webhooks, and long polls while they wait. Programs that poll without waiting are not.</p>
              </Empty>
            }
          />
        )}
      </Show>
    </Card>
  );
}

const SERVER_COLUMNS: Column<ServerLine>[] = [
  {
    id: "name",
    title: "Server",
    name: true,
    sort: (row) => row.name,
    cell: (row) => (
      <>
        {row.name} {row.self && <Badge tone="accent">this one</Badge>}
      </>
    ),
  },
  { id: "url", title: "Address", sort: (row) => row.url, cell: (row) => row.url },
  {
    id: "health",
    title: "Health",
    cell: (row) => (
      <Badge tone={row.healthy ? "good" : "bad"} title={row.detail}>
        {row.healthy ? "● healthy" : "✕ unhealthy"}
      </Badge>
    ),
  },
  { id: "store", title: "Store", cell: (row) => row.store },
  { id: "roles", title: "Roles", cell: (row) => row.roles.join(", ") || "–" },
  { id: "connections", title: "Connections", num: true, cell: (row) => count(Object.values(row.connections).reduce((a, b) => a + b, 0)) },
  { id: "version", title: "Version", cell: (row) => row.version },
  { id: "uptime", title: "Up", num: true, sort: (row) => row.uptime, cell: (row) => duration(row.uptime) },
];

const LOSSES: Column<LossWindowView>[] = [
  { id: "when", title: "When", name: true, cell: (row) => row.when },
  { id: "loses", title: "It may lose", cell: (row) => <Loss of={row} /> },
  { id: "text", title: "Why", cell: (row) => <span class="soft">{row.text}</span> },
];

function Loss({ of }: { of: LossWindowView }) {
  if (of.loses === "nothing") return <Badge tone="good">✓ nothing</Badge>;
  if (of.loses === "unknown") return <Badge tone="warn">? unknown</Badge>;
  return <Badge tone={of.loses === "without_bound" ? "bad" : "warn"}>{of.loses === "without_bound" ? "✕ without bound" : `▲ the last ${duration(of.seconds)}`}</Badge>;
}

/** The servers of the store; with Redis, what its faults may cost. */
export function Servers() {
  const loaded = useLoad((aborted) => call("list_servers", {}, undefined, aborted), [], 5);
  const losses = loaded.value?.loss_window ?? [];
  return (
    <div class="stack">
      <Card title="Servers of this store" flush>
        <Show of={loaded}>{(found) => <DataTable caption="Servers of this store" columns={SERVER_COLUMNS} rows={found.servers} rowKey={(row) => row.instance} />}</Show>
      </Card>
      {losses.length > 0 && (
        <Card title="Loss window of Redis" flush>
          <DataTable caption="What a fault of Redis may lose of what was acknowledged" columns={LOSSES} rows={losses} rowKey={(row) => row.fault} />
        </Card>
      )}
    </div>
  );
}
