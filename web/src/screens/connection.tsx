/** One connection: who it is, its channels with what they hold, its consumers. */
import { mayClose, openClose } from "../actions/connections";
import { call } from "../api/client";
import type { ChannelInfo, ConsumerView, SubscriptionInfo } from "../api/schema";
import { Badge, Button, Card, Facts, PageHead, Show, Time } from "../components/basics";
import { DataTable, type Column } from "../components/table";
import { bytes, count } from "../format";
import { useLoad } from "../load";
import { navigate, to } from "../router";

const CHANNELS: Column<ChannelInfo>[] = [
  { id: "number", title: "Channel", name: true, sort: (row) => row.number, cell: (row) => row.number },
  { id: "prefetch", title: "Prefetch", num: true, cell: (row) => (row.prefetch || row.shared_prefetch ? count(row.prefetch || row.shared_prefetch) : "no limit") },
  { id: "unacked", title: "Unacked", num: true, sort: (row) => row.unacked, cell: (row) => count(row.unacked) },
  { id: "unconfirmed", title: "Unconfirmed", num: true, sort: (row) => row.unconfirmed, cell: (row) => count(row.unconfirmed) },
  { id: "consumers", title: "Consumers", num: true, sort: (row) => row.consumers, cell: (row) => count(row.consumers) },
  { id: "mode", title: "Mode", cell: (row) => (row.transactional ? "transactions" : row.confirms ? "confirms" : "–") },
];

const SUBSCRIPTIONS: Column<SubscriptionInfo>[] = [
  { id: "queue", title: "Queue", name: true, cell: (row) => (row.queue ? <a href={to(["queues", row.queue])}>{row.queue}</a> : `${row.pattern ?? "all"} (${count(row.queues)})`) },
  { id: "credit", title: "Credit", num: true, sort: (row) => row.credit, cell: (row) => count(row.credit) },
  { id: "in_flight", title: "In flight", num: true, sort: (row) => row.in_flight, cell: (row) => count(row.in_flight) },
];

const CONSUMERS: Column<ConsumerView>[] = [
  { id: "queue", title: "Queue", name: true, sort: (row) => row.queue, cell: (row) => <a href={to(["queues", row.queue, "consumers"])}>{row.queue}</a> },
  { id: "name", title: "Consumer", cut: true, cell: (row) => row.name || "–" },
  { id: "channel", title: "Channel", num: true, cell: (row) => row.channel ?? "–" },
  { id: "credit", title: "Credit", num: true, cell: (row) => (row.credit === null ? "no limit" : count(row.credit)) },
  { id: "in_flight", title: "In flight", num: true, cell: (row) => count(row.in_flight) },
  { id: "state", title: "State", cell: (row) => (row.active ? <Badge tone="good">active</Badge> : <Badge>waits for its turn</Badge>) },
  { id: "since", title: "Since", num: true, cell: (row) => <Time at={row.since} ago /> },
];

export function Connection({ id }: { id: string }) {
  const loaded = useLoad((aborted) => call("show_connection", { id }, undefined, aborted), [id], 2);
  const crumbs = <a href={to(["connections"])}>Connections</a>;
  // Once it is gone its last values would only look alive.
  if (!loaded.value || loaded.problem?.status === 404) {
    return (
      <>
        <PageHead title={id} crumbs={crumbs} />
        <Show of={{ ...loaded, value: undefined }}>{() => null}</Show>
      </>
    );
  }
  const row = loaded.value;
  return (
    <div class="stack">
      <PageHead
        crumbs={crumbs}
        title={
          <>
            {row.peer} <Badge>{row.protocol}</Badge> {row.tls && <Badge>TLS</Badge>}
          </>
        }
      >
        {mayClose(row) && <Button onClick={() => openClose(row, () => navigate(to(["connections"])))}>Close…</Button>}
      </PageHead>
      <Card title="Client">
        <Facts
          items={[
            ["Name", row.name || "–"],
            ["Library", row.client || "–"],
            ["User", row.user || "–"],
            ["Server", row.server],
            ["State", row.state],
            ["Since", <Time at={row.since} />],
            ["In flight", count(row.in_flight)],
            ["Not sent yet", bytes(row.unsent_bytes)],
            ["Published", `${count(row.published)} messages, ${bytes(row.received_bytes)} received`],
            ["Delivered", `${count(row.delivered)} messages, ${bytes(row.sent_bytes)} sent`],
            ["Last error", row.last_error ?? "none"],
          ]}
        />
      </Card>
      {row.consumer_details.length > 0 && (
        <Card title="Consumers" flush>
          <DataTable caption="Consumers of the connection" columns={CONSUMERS} rows={row.consumer_details} rowKey={(each) => `${each.channel} ${each.name} ${each.queue} ${each.since}`} />
        </Card>
      )}
      {row.channel_details.length > 0 && (
        <Card title="Channels" flush>
          <DataTable caption="Channels of the connection" columns={CHANNELS} rows={row.channel_details} rowKey={(each) => String(each.number)} sort="number" />
        </Card>
      )}
      {row.subscription_details.length > 0 && (
        <Card title="Subscriptions" flush>
          <DataTable caption="Subscriptions of the connection" columns={SUBSCRIPTIONS} rows={row.subscription_details} rowKey={(each) => each.id} />
        </Card>
      )}
    </div>
  );
}
