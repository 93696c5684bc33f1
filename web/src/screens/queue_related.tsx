/** What belongs to a queue: dead letters, consumers, permissions, schedules, webhooks. */
import { openRedrive } from "../actions/redrive";
import { QUEUE_ACTIONS } from "../admin/rules";
import { call } from "../api/client";
import type { ConsumerView, Lease, ScheduleView, UserView, WebhookView } from "../api/schema";
import { Badge, Button, Card, Empty, LinkButton, Show, Time } from "../components/basics";
import { DataTable, type Column } from "../components/table";
import { count, duration, oneLine, plural } from "../format";
import { useLoad } from "../load";
import { queues } from "../live";
import { verdict } from "../queue/access";
import { to } from "../router";
import { may, session } from "../session";
import type { TabProps } from "./queue";

export function QueueDead({ queue }: TabProps) {
  const sources = [...queues.value.values()].filter((row) => row.dlq === queue.name).map((row) => row.name);
  const target = sources.length ? queue.name : queue.settings.dlq;
  const loaded = useLoad(async (signal) => (target ? (await call("group_dead_letters", { queue: target }, undefined, signal)).groups : []), [target], 5);
  if (!target) {
    return (
      <Empty title="No dead-letter queue">
        <p>A message that fails is delivered again and again. With a dead-letter queue it is put aside after some deliveries.</p>
        <LinkButton href={to(["queues", queue.name, "settings"])}>Set one up</LinkButton>
      </Empty>
    );
  }
  const here = queues.value.get(target);
  return (
    <div class="stack">
      {sources.length > 0 && (
        <p>
          Dead letters of{" "}
          {sources.map((name, index) => (
            <span key={name}>
              {index > 0 && ", "}
              <a href={to(["queues", name])}>{name}</a>
            </span>
          ))}{" "}
          arrive here.
        </p>
      )}
      <Card
        title={target === queue.name ? "By reason" : `In ${target}, by reason`}
        flush
        actions={
          <>
            <LinkButton small href={to(["dead-letters"], { queue: target })}>
              Look closer
            </LinkButton>
            {may("manage", target) && here && here.ready > 0 && (
              <Button small onClick={() => openRedrive({ queues: [target], done: loaded.reload })}>
                Redrive {count(here.ready)}
              </Button>
            )}
          </>
        }
      >
        <Show of={loaded}>
          {(groups) =>
            groups.length ? (
              <DataTable
                caption="Dead letters by reason"
                rows={groups}
                rowKey={(group) => group.reason}
                rowHref={() => to(["dead-letters"], { queue: target })}
                columns={[
                  { id: "count", title: "Count", num: true, width: "90px", sort: (group) => group.count, cell: (group) => count(group.count) },
                  { id: "reason", title: "Reason", name: true, cell: (group) => oneLine(group.reason || "no reason given", 200) },
                  { id: "sources", title: "From", cell: (group) => group.sources.join(", ") },
                  { id: "last", title: "Last", width: "120px", sort: (group) => group.last, cell: (group) => <Time at={group.last} ago /> },
                ]}
              />
            ) : (
              <Empty title="No dead letters" />
            )
          }
        </Show>
      </Card>
    </div>
  );
}

const CONSUMERS: Column<ConsumerView>[] = [
  { id: "name", title: "Consumer", name: true, sort: (row) => row.name, cell: (row) => <a href={to(row.connection ? ["connections", row.connection] : ["webhooks", row.name])}>{row.name || row.connection}</a> },
  { id: "protocol", title: "Protocol", sort: (row) => row.protocol, cell: (row) => row.protocol },
  { id: "user", title: "User", sort: (row) => row.user, cell: (row) => row.user || "–" },
  { id: "peer", title: "From", cell: (row) => <span class="mono">{row.peer}</span> },
  { id: "in_flight", title: "Holds", num: true, sort: (row) => row.in_flight, cell: (row) => count(row.in_flight) },
  { id: "credit", title: "Prefetch", num: true, cell: (row) => (row.credit === null ? "no limit" : count(row.credit)) },
  { id: "since", title: "Since", sort: (row) => row.since, cell: (row) => <Time at={row.since} ago /> },
];

const LEASES = (queue: string): Column<Lease>[] => [
  { id: "id", title: "Message", cell: (row) => <a class="mono" href={to(["messages", row.id], { queue })}>{oneLine(row.id, 40)}</a> },
  { id: "consumer", title: "Consumer", sort: (row) => row.consumer, cell: (row) => row.consumer ?? "–" },
  { id: "since", title: "Held for", num: true, sort: (row) => row.since, cell: (row) => duration((Date.now() - Date.parse(row.since)) / 1000) },
  { id: "deadline", title: "Lease ends", cell: (row) => (row.deadline ? <Time at={row.deadline} ago /> : "with its connection") },
  { id: "count", title: "Deliveries", num: true, sort: (row) => row.receive_count, cell: (row) => count(row.receive_count) },
];

export function QueueConsumers({ queue }: TabProps) {
  const name = queue.name;
  const consumers = useLoad((signal) => call("list_consumers", { queue: name, limit: 500 }, undefined, signal), [name], 2);
  const leases = useLoad((signal) => call("list_leases", { queue: name, limit: 500 }, undefined, signal), [name], 2);
  return (
    <div class="stack">
      <Card title={`Consumers ${consumers.value ? count(consumers.value.total) : ""}`} flush>
        <Show of={consumers}>
          {(list) => (
            <DataTable
              caption={`Consumers of ${name}`}
              rows={list.consumers}
              rowKey={(row) => `${row.connection} ${row.channel} ${row.name}`}
              columns={CONSUMERS}
              empty={
                <Empty title="No consumer is connected">
                  <p>{queue.stats.waiters ? `${plural(queue.stats.waiters, "request")} wait for messages.` : "Clients that poll over SQS or REST are seen by what they hold, below."}</p>
                </Empty>
              }
            />
          )}
        </Show>
      </Card>
      <Card title={`In flight ${leases.value ? count(leases.value.total) : ""}`} flush>
        <Show of={leases}>{(list) => <DataTable caption="Messages in flight" rows={list.messages} rowKey={(row) => row.id} rowHref={(row) => to(["messages", row.id], { queue: name })} columns={LEASES(name)} empty={<Empty title="No message is in flight" />} />}</Show>
      </Card>
    </div>
  );
}

export function QueueAccess({ queue }: TabProps) {
  const loaded = useLoad((signal) => call("list_users", {}, undefined, signal), [queue.name]);
  const account = session.value?.account ?? "";
  const columns: Column<UserView>[] = [
    { id: "name", title: "User", name: true, sort: (row) => row.name, cell: (row) => row.name },
    { id: "role", title: "Role", sort: (row) => row.role, cell: (row) => row.role },
    ...QUEUE_ACTIONS.map((action) => ({
      id: action,
      title: action.charAt(0).toUpperCase() + action.slice(1),
      cell: (row: UserView) => {
        const { may, because } = verdict(row, action, queue.name, account);
        return (
          <span title={because}>
            {may ? <Badge tone="good">✓ yes</Badge> : <Badge>no</Badge>} <span class="soft">{because}</span>
          </span>
        );
      },
    })),
  ];
  return (
    <Card title="Who may do what" flush>
      <Show of={loaded}>
        {(list) => (
          <DataTable
            caption={`Permissions on ${queue.name}`}
            rows={list.users}
            rowKey={(row) => row.name}
            columns={columns}
            empty={
              <Empty title="The server has no users">
                <p>Everybody may do everything. Adding the first user ends open access.</p>
              </Empty>
            }
          />
        )}
      </Show>
      <p class="state">By the roles and rules of the users. A policy of the queue, as SQS has it, can allow or deny more.</p>
    </Card>
  );
}

export function QueueSchedules({ queue }: TabProps) {
  const loaded = useLoad(async (signal) => (await call("list_schedules", { next_runs: 1 }, undefined, signal)).schedules.filter((each) => each.queue === queue.name), [queue.name], 5);
  const columns: Column<ScheduleView>[] = [
    { id: "name", title: "Schedule", name: true, sort: (row) => row.name, cell: (row) => <a href={to(["schedules"], { filter: row.name })}>{row.name}</a> },
    { id: "when", title: "When", cell: (row) => (row.cron ? <span class="mono">{row.cron}</span> : `every ${duration(row.every)}`) },
    { id: "next", title: "Next run", sort: (row) => row.next_run, cell: (row) => (row.paused ? <Badge tone="warn">paused</Badge> : row.next_run ? <Time at={row.next_run} ago /> : "none left") },
    { id: "runs", title: "Runs", num: true, sort: (row) => row.runs, cell: (row) => count(row.runs) },
    { id: "error", title: "Last error", cut: true, cell: (row) => row.error ?? "–" },
  ];
  return (
    <Card title="Schedules that publish to this queue" flush actions={<LinkButton small href={to(["schedules"])}>All schedules</LinkButton>}>
      <Show of={loaded}>{(rows) => <DataTable caption={`Schedules of ${queue.name}`} rows={rows} rowKey={(row) => row.name} columns={columns} empty={<Empty title="No schedule publishes here" />} />}</Show>
    </Card>
  );
}

export function QueueWebhooks({ queue }: TabProps) {
  const loaded = useLoad(async (signal) => (await call("list_webhooks", {}, undefined, signal)).webhooks.filter((each) => each.queue === queue.name || each.events?.queues?.includes(queue.name)), [queue.name], 5);
  const columns: Column<WebhookView>[] = [
    { id: "name", title: "Webhook", name: true, sort: (row) => row.name, cell: (row) => <a href={to(["webhooks"], { filter: row.name })}>{row.name}</a> },
    { id: "url", title: "URL", cut: true, cell: (row) => <span class="mono">{row.url}</span> },
    { id: "sends", title: "Sends", cell: (row) => (row.queue ? "messages" : "events") },
    { id: "state", title: "State", cell: (row) => (row.enabled ? <Badge tone={row.status.last_error ? "warn" : "good"}>{row.status.state}</Badge> : <Badge tone="bad">disabled</Badge>) },
    { id: "delivered", title: "Delivered", num: true, cell: (row) => count(row.status.delivered) },
    { id: "failed", title: "Failed", num: true, cell: (row) => count(row.status.failed) },
  ];
  return (
    <Card title="Webhooks of this queue" flush actions={<LinkButton small href={to(["webhooks"])}>All webhooks</LinkButton>}>
      <Show of={loaded}>{(rows) => <DataTable caption={`Webhooks of ${queue.name}`} rows={rows} rowKey={(row) => row.name} columns={columns} empty={<Empty title="No webhook sends from here" />} />}</Show>
    </Card>
  );
}
