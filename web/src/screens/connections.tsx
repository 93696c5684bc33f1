/** Who is connected, by which protocol, what they hold; and the consumers of queues. */
import { signal } from "@preact/signals";

import { call, requestOf } from "../api/client";
import { cliLine } from "../api/lines";
import type { ConnectionView, ConsumerView, ServerLine } from "../api/schema";
import { Badge, Button, Card, Empty, Facts, PageHead, Show, Tabs, Time } from "../components/basics";
import { openAction } from "../components/dialog";
import { FilterBox, SelectField, TextField } from "../components/field";
import { DataTable, type Column } from "../components/table";
import { bytes, count, duration, plural } from "../format";
import { useLoad } from "../load";
import { query, setQuery, to, words } from "../router";
import { mayChange } from "../session";

const PROTOCOLS = [
  ["", "All protocols"],
  ["amqp", "AMQP"],
  ["ws", "WebSocket"],
  ["sse", "Events (SSE)"],
] as const;
type Protocol = (typeof PROTOCOLS)[number][0];

export default function Connections() {
  const tab = words.value[1] ?? "connections";
  return (
    <>
      <PageHead title="Connections" />
      <Tabs
        label="Clients"
        current={tab}
        items={[
          { id: "connections", title: "Connections", href: to(["connections"]) },
          { id: "consumers", title: "Consumers", href: to(["connections", "consumers"]) },
          { id: "servers", title: "Servers", href: to(["connections", "servers"]) },
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
              columns={connectionColumns(loaded.reload)}
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

function connectionColumns(reload: () => void): Column<ConnectionView>[] {
  return [
    {
      id: "peer",
      title: "Peer",
      name: true,
      sort: (row) => row.peer,
      cell: (row) => (
        <>
          {row.peer} {row.tls && <Badge>TLS</Badge>}
        </>
      ),
    },
    { id: "protocol", title: "Protocol", sort: (row) => row.protocol, cell: (row) => row.protocol },
    { id: "user", title: "User", sort: (row) => row.user, cell: (row) => row.user || "–" },
    { id: "client", title: "Client", cut: true, sort: (row) => row.client, cell: (row) => row.name || row.client || "–" },
    { id: "queues", title: "Queues", cut: true, cell: (row) => <QueueLinks names={row.queues} /> },
    { id: "channels", title: "Channels", num: true, sort: (row) => row.channels, cell: (row) => (row.protocol === "amqp" ? count(row.channels) : "–") },
    { id: "consumers", title: "Consumers", num: true, sort: (row) => row.consumers, cell: (row) => count(row.consumers) },
    { id: "in_flight", title: "In flight", num: true, sort: (row) => row.in_flight, cell: (row) => count(row.in_flight) },
    { id: "unsent", title: "Unsent", num: true, sort: (row) => row.unsent_bytes, cell: (row) => bytes(row.unsent_bytes) },
    { id: "since", title: "Since", num: true, sort: (row) => row.since, cell: (row) => <Time at={row.since} ago /> },
    {
      id: "close",
      title: "Action",
      num: true,
      cell: (row) =>
        mayChange() ? (
          <Button small aria-label={`Close the connection of ${row.peer}`} onClick={() => openClose(row, reload)}>
            Close…
          </Button>
        ) : null,
    },
  ];
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

function openClose(row: ConnectionView, done: () => void): void {
  const reason = signal("");
  const params = () => ({ id: row.id, reason: reason.value || undefined });
  openAction({
    title: `Close the connection of ${row.peer}`,
    verb: "Close the connection",
    danger: true,
    body: () => (
      <>
        <Facts
          items={[
            ["Protocol", row.protocol],
            ["User", row.user || "–"],
            ["Client", row.name || row.client || "–"],
          ]}
        />
        <p>
          {row.in_flight > 0 ? `${plural(row.in_flight, "message")} in flight return to their queues at once.` : "It holds no messages."} The client may connect again.
        </p>
        <TextField label="Reason for the client" placeholder="closed by an operator" value={reason.value} onValue={(value) => (reason.value = value)} />
      </>
    ),
    request: () => requestOf("close_connection", params()),
    cli: () => cliLine("connections", "close", row.id, reason.value && "--reason", reason.value),
    run: async () => {
      await call("close_connection", params());
      return `The connection of ${row.peer} is closed.`;
    },
    done,
  });
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
                <p>Consumers that stay connected are listed here: AMQP, WebSocket, and long polls while they wait. Programs that poll without waiting are not.</p>
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

function Servers() {
  const loaded = useLoad((aborted) => call("list_servers", {}, undefined, aborted), [], 5);
  return (
    <Card title="Servers of this store" flush>
      <Show of={loaded}>{(found) => <DataTable caption="Servers of this store" columns={SERVER_COLUMNS} rows={found.servers} rowKey={(row) => row.instance} />}</Show>
    </Card>
  );
}
