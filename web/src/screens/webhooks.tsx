/** Webhooks: messages or events that are sent to a URL, with their state and last attempts. */
import { signal } from "@preact/signals";

import { watchTask } from "../actions/tasks";
import { call, Problem, requestOf } from "../api/client";
import { cliLine } from "../api/lines";
import type { AttemptView, WebhookChange, WebhookReplay, WebhookView } from "../api/schema";
import { Badge, Button, Card, Choice, Empty, Facts, Notice, PageHead, Show, Time } from "../components/basics";
import { CopyLine } from "../components/code";
import { openAction } from "../components/dialog";
import { TextField } from "../components/field";
import { DataTable, type Column } from "../components/table";
import { TaskList } from "../components/task_list";
import { toastProblem } from "../components/toast";
import { count, duration, localInput, secondsOfInput } from "../format";
import { useLoad } from "../load";
import { query, to, words } from "../router";
import { may } from "../session";

const reload = signal<(() => void) | undefined>(undefined);
const newSecret = signal<{ name: string; secret: string } | undefined>(undefined);

export default function Webhooks() {
  const name = words.value[1];
  if (name) return <Webhook name={name} />;
  return (
    <div class="stack">
      <PageHead title="Webhooks">
        {may("manage") && (
          <Button kind="primary" onClick={() => openAdd(() => reload.value?.())}>
            Add a webhook
          </Button>
        )}
      </PageHead>
      <SecretNotice />
      <WebhookTable queue={query.value.get("queue") ?? undefined} />
    </div>
  );
}

/** A secret is shown once, by the answer that made it. */
function SecretNotice() {
  const made = newSecret.value;
  if (!made) return null;
  return (
    <Notice tone="good">
      <div class="stack tight">
        <p>The secret of webhook {made.name} is shown only now. The endpoint verifies signatures with it.</p>
        <CopyLine text={made.secret} />
        <div class="row">
          <Button small onClick={() => (newSecret.value = undefined)}>
            I have copied it
          </Button>
        </div>
      </div>
    </Notice>
  );
}

function StateBadge({ webhook }: { webhook: WebhookView }) {
  if (!webhook.enabled) return <Badge tone="bad" title={webhook.reason ?? ""}>✕ disabled</Badge>;
  const { state, breaker } = webhook.status;
  if (breaker !== "closed") return <Badge tone="warn">▲ paused after failures</Badge>;
  return <Badge tone={webhook.status.trouble ? "warn" : "good"}>{state}</Badge>;
}

export function WebhookTable({ queue }: { queue?: string }) {
  const loaded = useLoad((aborted) => call("list_webhooks", {}, undefined, aborted), [], 3);
  reload.value = loaded.reload;
  return (
    <Card flush label="Webhooks">
      <Show of={loaded}>
        {({ webhooks }) => (
          <DataTable
            caption="Webhooks"
            columns={COLUMNS}
            rows={webhooks.filter((each) => !queue || each.queue === queue)}
            rowKey={(row) => row.name}
            rowHref={(row) => to(["webhooks", row.name])}
            sort="name"
            empty={
              <Empty title="No webhooks">
                <p>A webhook posts each message of a queue, or events, to a URL, with a signature.</p>
                <p>
                  <code>openq webhook add shop https://example.com/hook --queue orders</code>
                </p>
              </Empty>
            }
          />
        )}
      </Show>
    </Card>
  );
}

const COLUMNS: Column<WebhookView>[] = [
  { id: "name", title: "Name", name: true, sort: (row) => row.name, cell: (row) => <a href={to(["webhooks", row.name])}>{row.name}</a> },
  { id: "state", title: "State", cell: (row) => <StateBadge webhook={row} /> },
  { id: "what", title: "Sends", cut: true, cell: (row) => whatIsSent(row) },
  { id: "url", title: "To", cut: true, sort: (row) => row.url, cell: (row) => row.url },
  { id: "delivered", title: "Delivered", num: true, sort: (row) => row.status.delivered, cell: (row) => count(row.status.delivered) },
  { id: "failed", title: "Failed", num: true, sort: (row) => row.status.failed, cell: (row) => <span class={row.status.failed ? "bad" : ""}>{count(row.status.failed)}</span> },
  { id: "last", title: "Last attempt", num: true, sort: (row) => row.status.last_attempt, cell: (row) => (row.status.last_attempt ? <Time at={row.status.last_attempt} ago /> : "never") },
];

function whatIsSent(row: WebhookView): string {
  if (row.queue) return `messages of ${row.queue}`;
  return `events of ${row.events?.queues?.join(", ") || "all queues"}`;
}

function Webhook({ name }: { name: string }) {
  const loaded = useLoad((aborted) => call("show_webhook", { webhook: name }, undefined, aborted), [name], 3);
  const log = useLoad((aborted) => call("list_deliveries", { webhook: name, limit: 100 }, undefined, aborted), [name], 3);
  return (
    <div class="stack">
      <Show of={loaded}>
        {(webhook) => (
          <>
            <PageHead title={webhook.name} crumbs={<a href={to(["webhooks"])}>Webhooks</a>}>
              {(webhook.queue ? may("manage", webhook.queue) : may("manage")) && <Actions webhook={webhook} done={loaded.reload} />}
            </PageHead>
            <SecretNotice />
            {webhook.status.trouble && <Notice tone="warn">{webhook.status.trouble}</Notice>}
            {!webhook.enabled && <Notice tone="bad">Disabled{webhook.reason ? `: ${webhook.reason}` : ""}. Nothing is sent until it is enabled.</Notice>}
            <Card title="Settings">
              <Facts
                items={[
                  ["State", <StateBadge webhook={webhook} />],
                  ["Sends", whatIsSent(webhook)],
                  ["To", webhook.url],
                  ["Mode", webhook.mode],
                  ["At once", `${webhook.concurrency} requests${webhook.rate ? `, at most ${webhook.rate}` : ""}`],
                  ["Timeout", duration(webhook.timeout)],
                  ["Delivered", count(webhook.status.delivered)],
                  ["Failed", count(webhook.status.failed)],
                  ["Last error", webhook.status.last_error ?? "none"],
                  ["Created", <Time at={webhook.created} />],
                ]}
              />
            </Card>
          </>
        )}
      </Show>
      <TaskList kinds={["webhook-replay"]} />
      <Card title="Last attempts" flush>
        <Show of={log}>
          {({ deliveries }) => <DataTable caption="Last attempts" columns={ATTEMPTS} rows={deliveries} rowKey={(row) => `${row.id} ${row.time} ${row.attempt}`} empty={<p class="state">Nothing was sent yet.</p>} />}
        </Show>
      </Card>
    </div>
  );
}

const ATTEMPTS: Column<AttemptView>[] = [
  { id: "time", title: "Time", sort: (row) => row.time, cell: (row) => <Time at={row.time} /> },
  { id: "outcome", title: "Outcome", cell: (row) => <Badge tone={row.outcome === "delivered" ? "good" : "bad"}>{row.outcome}</Badge> },
  { id: "status", title: "Status", num: true, sort: (row) => row.status, cell: (row) => row.status ?? "–" },
  { id: "duration", title: "Took", num: true, sort: (row) => row.duration, cell: (row) => duration(row.duration) },
  { id: "attempt", title: "Attempt", num: true, sort: (row) => row.attempt, cell: (row) => count(row.attempt) },
  { id: "messages", title: "Messages", num: true, cell: (row) => count(row.messages) },
  { id: "detail", title: "Answer", cut: true, cell: (row) => row.detail || "–" },
];

function Actions({ webhook, done }: { webhook: WebhookView; done: () => void }) {
  return (
    <>
      {webhook.queue && <Button onClick={() => openReplay(webhook)}>Replay…</Button>}
      <Button onClick={() => openTest(webhook)}>Send a sample…</Button>
      <Button onClick={() => openSwitch(webhook, done)}>{webhook.enabled ? "Disable…" : "Enable…"}</Button>
      <Button onClick={() => openRotate(webhook.name, done)}>New secret…</Button>
      <Button onClick={() => openDelete(webhook)}>Delete…</Button>
    </>
  );
}

function openSwitch(webhook: WebhookView, done: () => void): void {
  const params = { webhook: webhook.name };
  const reason = signal("");
  const disable = () => ({ reason: reason.value || undefined });
  const set = (on: boolean) => (on ? call("enable_webhook", params) : call("disable_webhook", params, disable()));
  const isOn = webhook.enabled;
  openAction({
    title: isOn ? `Disable webhook ${webhook.name}` : `Enable webhook ${webhook.name}`,
    verb: isOn ? "Disable" : "Enable",
    body: () => (
      <div class="stack">
        <p>{isOn ? `Nothing is sent to ${webhook.url} until it is enabled.${webhook.queue ? ` Messages wait in ${webhook.queue}.` : ""}` : `It sends to ${webhook.url} again.`}</p>
        {isOn && <TextField label="Reason" placeholder="maintenance" value={reason.value} onValue={(value) => (reason.value = value)} />}
      </div>
    ),
    request: () => (isOn ? requestOf("disable_webhook", params, disable()) : requestOf("enable_webhook", params)),
    cli: () => cliLine("webhook", isOn ? "disable" : "enable", webhook.name, isOn && reason.value && "--reason", isOn && reason.value),
    run: async () => {
      await set(!isOn);
      return { text: `${webhook.name} is ${isOn ? "disabled" : "enabled"}.`, undo: () => void set(isOn).then(done, toastProblem) };
    },
    done,
  });
}

function openTest(webhook: WebhookView): void {
  openAction({
    title: `Send a sample to ${webhook.name}`,
    verb: "Send",
    body: () => <p>A signed sample is sent to {webhook.url}, also if the webhook is disabled. No message is touched.</p>,
    request: () => requestOf("test_webhook", { webhook: webhook.name }),
    cli: () => cliLine("webhook", "test", webhook.name),
    run: async () => {
      const attempt = await call("test_webhook", { webhook: webhook.name });
      const answer = `The endpoint answered ${attempt.status ?? "nothing"} in ${duration(attempt.duration)}. ${attempt.detail}`;
      if (attempt.outcome !== "delivered" && (attempt.status === null || attempt.status >= 300)) throw new Problem(0, "endpoint", answer);
      return answer;
    },
  });
}

/** Past messages of the queue are sent again, to this endpoint alone. */
function openReplay(webhook: WebhookView): void {
  const since = signal(localInput(Date.now() / 1000 - 3600));
  const until = signal("");
  const rate = signal("");
  const iso = (text: string) => {
    const seconds = secondsOfInput(text);
    return seconds === undefined ? undefined : new Date(seconds * 1000).toISOString();
  };
  const params = { webhook: webhook.name };
  const body = (): WebhookReplay => ({ since: iso(since.value) ?? null, ...(iso(until.value) ? { until: iso(until.value) } : {}), ...(rate.value ? { rate: rate.value } : {}) });
  openAction({
    title: `Replay to ${webhook.name}`,
    verb: "Replay",
    key: () => `${since.value} ${until.value}`,
    count: async (aborted) => {
      const span = { since: iso(since.value) ?? 0, until: iso(until.value) ?? null, buckets: 1, budget: 5 };
      return (await call("preview_replay", { queue: webhook.queue ?? "" }, span, aborted)).matched;
    },
    body: () => (
      <div class="stack">
        <p>Messages that were published to {webhook.queue} are sent to {webhook.url} again, oldest first. The queue is not changed; an endpoint should know messages that it has had by their ids.</p>
        <div class="form-grid">
          <TextField label="Published from" type="datetime-local" step="1" value={since.value} onValue={(value) => (since.value = value)} required />
          <TextField label="Until" type="datetime-local" step="1" value={until.value} onValue={(value) => (until.value = value)} help={until.value ? undefined : "Empty: now"} />
          <TextField label="Rate limit" placeholder="none, or 10/s" value={rate.value} onValue={(value) => (rate.value = value)} />
        </div>
      </div>
    ),
    request: () => requestOf("replay_webhook", params, body()),
    cli: () => cliLine("webhook", "replay", webhook.name, "--since", iso(since.value), iso(until.value) && "--until", iso(until.value), rate.value && "--rate", rate.value || undefined),
    run: async () => {
      const task = await call("replay_webhook", params, body());
      watchTask(task.id);
      return "The replay has started.";
    },
  });
}

function openRotate(name: string, done: () => void): void {
  openAction({
    title: `New secret for ${name}`,
    verb: "Make a new secret",
    body: () => <p>Requests are signed with both secrets until the old one ends. Give the endpoint the new one before that.</p>,
    request: () => requestOf("rotate_webhook_secret", { webhook: name }, {}),
    cli: () => cliLine("webhook", "rotate", name),
    run: async () => {
      const made = await call("rotate_webhook_secret", { webhook: name }, {});
      if (made.secret) newSecret.value = { name, secret: made.secret };
      return "The new secret is shown at the top of the page.";
    },
    done,
  });
}

function openDelete(webhook: WebhookView): void {
  openAction({
    title: `Delete webhook ${webhook.name}`,
    verb: "Delete",
    danger: true,
    body: () => <p>Nothing more is sent. Its delivery log and its secret are deleted with it. Messages stay in their queue.</p>,
    request: () => requestOf("delete_webhook", { webhook: webhook.name }),
    cli: () => cliLine("webhook", "rm", webhook.name),
    run: async () => {
      await call("delete_webhook", { webhook: webhook.name });
      history.back();
      return `Webhook ${webhook.name} is deleted.`;
    },
  });
}

function openAdd(done: () => void): void {
  const name = signal("");
  const url = signal("https://");
  const kind = signal<"queue" | "events">("queue");
  const queue = signal("");
  const rate = signal("");
  const body = (): WebhookChange => ({
    url: url.value,
    ...(kind.value === "queue" ? { queue: queue.value } : { events: { queues: queue.value ? queue.value.split(/[\s,]+/) : ["*"] } }),
    rate: rate.value || null,
  });
  openAction({
    title: "Add a webhook",
    verb: "Add",
    body: () => (
      <div class="stack">
        <div class="form-grid">
          <TextField label="Name" value={name.value} onValue={(value) => (name.value = value)} required autofocus />
          <TextField label="URL" type="url" value={url.value} onValue={(value) => (url.value = value)} required />
        </div>
        <Choice
          label="What is sent"
          value={kind.value}
          options={[
            ["queue", "Messages of a queue"],
            ["events", "Events"],
          ]}
          onChange={(value) => (kind.value = value)}
        />
        <div class="form-grid">
          <TextField label={kind.value === "queue" ? "Queue" : "Queues"} placeholder={kind.value === "queue" ? "" : "* for all"} value={queue.value} onValue={(value) => (queue.value = value)} />
          <TextField label="Rate limit" placeholder="none, or 10/s" value={rate.value} onValue={(value) => (rate.value = value)} />
        </div>
        <p class="soft">2xx acknowledges a message, 410 disables the webhook, anything else is tried again by the retry policy of the queue.</p>
      </div>
    ),
    request: () => requestOf("put_webhook", { webhook: name.value }, body()),
    cli: () => cliLine("webhook", "add", name.value, url.value, kind.value === "queue" ? "--queue" : "--events", queue.value || "*", rate.value && "--rate", rate.value || undefined),
    run: async () => {
      const made = await call("put_webhook", { webhook: name.value }, body());
      if (made.secret) newSecret.value = { name: made.name, secret: made.secret };
      return `Webhook ${made.name} is there.`;
    },
    done,
  });
}
