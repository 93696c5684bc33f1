/** Alerts: what is wrong now and what to do, the rules, the silences, the history. */
import { signal } from "@preact/signals";

import { call, Problem, requestOf } from "../api/client";
import { cliLine } from "../api/lines";
import type { AlertItem, AlertRuleView, DestinationView, HistoryItem, SilenceView } from "../api/schema";
import { Badge, Button, Card, Empty, PageHead, Show, Tabs, Time } from "../components/basics";
import { CopyLine, Ticked } from "../components/code";
import { openAction } from "../components/dialog";
import { TextField } from "../components/field";
import { DataTable, type Column } from "../components/table";
import { toastProblem } from "../components/toast";
import { count, duration, plural } from "../format";
import { useLoad } from "../load";
import { to, words } from "../router";
import { isAdmin, mayChange } from "../session";
import "../styles/alerts.css";

export default function Alerts() {
  const tab = words.value[1] ?? "now";
  return (
    <>
      <PageHead title="Alerts" />
      <Tabs
        label="Alerts"
        current={tab}
        items={[
          { id: "now", title: "Now", href: to(["alerts"]) },
          { id: "rules", title: "Rules", href: to(["alerts", "rules"]) },
          ...(isAdmin() ? [{ id: "destinations", title: "Destinations", href: to(["alerts", "destinations"]) }] : []),
          { id: "silences", title: "Silences", href: to(["alerts", "silences"]) },
          { id: "history", title: "History", href: to(["alerts", "history"]) },
        ]}
      />
      {tab === "rules" ? <Rules /> : tab === "destinations" ? <Destinations /> : tab === "silences" ? <Silences /> : tab === "history" ? <History /> : <Now />}
    </>
  );
}

function toneOf(alert: Pick<AlertItem, "state" | "severity">): "bad" | "warn" | "good" | undefined {
  if (alert.state === "resolved") return "good";
  if (alert.state === "pending") return undefined;
  return alert.severity === "critical" ? "bad" : "warn";
}

function Now() {
  const loaded = useLoad((aborted) => call("list_alerts", {}, undefined, aborted), [], 2);
  return (
    <Show of={loaded}>
      {(found) => {
        const current = found.alerts.filter((alert) => alert.state !== "resolved");
        return (
          <div class="stack">
            {!found.enabled && <p class="soft">Alerts are off in the configuration of this server.</p>}
            {current.length === 0 && (
              <Card>
                <Empty title="Nothing is wrong">
                  <p>No rule is firing{found.evaluated ? <>. Last looked <Time at={found.evaluated} ago /></> : ""}.</p>
                </Empty>
              </Card>
            )}
            {current.map((alert) => (
              <AlertCard key={alert.id} alert={alert} reload={loaded.reload} />
            ))}
          </div>
        );
      }}
    </Show>
  );
}

function AlertCard({ alert, reload }: { alert: AlertItem; reload: () => void }) {
  return (
    <Card
      label={`${alert.alert} ${alert.subject ?? ""}`}
      title={
        <>
          <Badge tone={toneOf(alert)}>
            {alert.state === "pending" ? "… pending" : `${alert.severity === "critical" ? "✕" : "▲"} ${alert.severity}`}
          </Badge>{" "}
          {alert.alert} {alert.subject && <SubjectLink alert={alert} />} {alert.silenced && <Badge>silenced</Badge>} {alert.flapping && <Badge tone="warn">flapping</Badge>}
        </>
      }
      actions={
        mayChange() && isAdmin() && !alert.silenced ? (
          <Button small onClick={() => openSilence(alert.alert, alert.subject ?? "", reload)}>
            Silence…
          </Button>
        ) : undefined
      }
    >
      <div class="stack tight">
        <p>{alert.summary}</p>
        <p class="soft">
          Since <Time at={alert.since} /> (<Time at={alert.since} ago />){alert.server && ` · ${alert.server}`}
        </p>
        {alert.action && (
          <p>
            <Ticked text={alert.action} />
          </p>
        )}
        {alert.command && <CopyLine text={alert.command} />}
      </div>
    </Card>
  );
}

function SubjectLink({ alert }: { alert: AlertItem }) {
  return alert.kind === "queue" ? <a href={to(["queues", alert.subject ?? ""])}>{alert.subject}</a> : <span>{alert.subject}</span>;
}

function openSilence(alert: string, subject: string, done: () => void): void {
  const hours = signal("1");
  const reason = signal("");
  const body = () => ({ alert, subject, seconds: Math.max(60, Number(hours.value) * 3600 || 3600), reason: reason.value });
  openAction({
    title: `Silence ${alert}${subject ? ` of ${subject}` : ""}`,
    verb: "Silence",
    body: () => (
      <div class="stack">
        <p>No notifications are sent meanwhile. The alert is shown all the same.</p>
        <div class="form-grid">
          <TextField label="Hours" type="number" min="0.1" step="any" value={hours.value} onValue={(value) => (hours.value = value)} />
          <TextField label="Reason" value={reason.value} onValue={(value) => (reason.value = value)} placeholder="known, a fix is on its way" />
        </div>
      </div>
    ),
    request: () => requestOf("add_silence", {}, body()),
    cli: () => cliLine("alert", "silence", alert, subject && "--subject", subject, "--for", `${body().seconds}s`, reason.value && "--reason", reason.value),
    run: async () => {
      await call("add_silence", {}, body());
      return `${alert} is silenced.`;
    },
    done,
  });
}

function Rules() {
  const loaded = useLoad((aborted) => call("list_alert_rules", {}, undefined, aborted), [], 10);
  return (
    <Card title="Rules" flush>
      <Show of={loaded}>{(found) => <DataTable caption="Alert rules" columns={ruleColumns(loaded.reload)} rows={found.rules} rowKey={(row) => row.name} sort="name" />}</Show>
    </Card>
  );
}

function ruleColumns(reload: () => void): Column<AlertRuleView>[] {
  return [
    {
      id: "name",
      title: "Rule",
      name: true,
      sort: (row) => row.name,
      cell: (row) => (
        <>
          {row.name} {!row.enabled && <Badge>off</Badge>}
          <p class="soft rule-help">{row.help}</p>
        </>
      ),
    },
    { id: "severity", title: "Severity", sort: (row) => row.severity, cell: (row) => row.severity },
    { id: "expression", title: "Condition", cell: (row) => <code class="rule-expression">{row.expression}</code> },
    {
      id: "limits",
      title: "Limits",
      cell: (row) => (
        <span>
          {Object.entries(row.limits)
            .map(([name, value]) => `${name} ${value}`)
            .join(", ") || "–"}
        </span>
      ),
    },
    { id: "for", title: "For", num: true, sort: (row) => row.for, cell: (row) => duration(row.for) },
    { id: "firing", title: "Firing", num: true, sort: (row) => row.firing, cell: (row) => count(row.firing) },
    {
      id: "action",
      title: "Action",
      num: true,
      cell: (row) =>
        mayChange() && isAdmin() ? (
          <span class="stack tight">
            <Button small aria-label={`Send a test of ${row.name}`} onClick={() => openTest(row.name)}>
              Test…
            </Button>
            {Object.keys(row.limits).length > 0 && (
              <Button small aria-label={`Change the limits of ${row.name}`} onClick={() => openLimits(row, reload)}>
                Limits…
              </Button>
            )}
            <Button small aria-label={`Switch ${row.enabled ? "off" : "on"} ${row.name}`} onClick={() => openSwitch(row, reload)}>
              {row.enabled ? "Switch off…" : "Switch on…"}
            </Button>
          </span>
        ) : null,
    },
  ];
}

function openSwitch(row: AlertRuleView, done: () => void): void {
  const params = { rule: row.name };
  const set = (enabled: boolean) => call("put_alert_rule", params, { enabled });
  openAction({
    title: `Switch ${row.enabled ? "off" : "on"} ${row.name}`,
    verb: row.enabled ? "Switch off" : "Switch on",
    danger: row.enabled,
    body: () => <p>{row.enabled ? `No alert of this rule is shown or sent until it is switched on. ${plural(row.firing, "alert")} of it ${row.firing === 1 ? "is" : "are"} firing now.` : "The rule is evaluated again."}</p>,
    request: () => requestOf("put_alert_rule", params, { enabled: !row.enabled }),
    cli: () => cliLine("alert", "set", row.name, row.enabled ? "--off" : "--on"),
    run: async () => {
      await set(!row.enabled);
      return { text: `${row.name} is ${row.enabled ? "off" : "on"}.`, undo: () => void set(row.enabled).then(done, toastProblem) };
    },
    done,
  });
}

function openLimits(row: AlertRuleView, done: () => void): void {
  const given = signal<Record<string, string>>(Object.fromEntries(Object.entries(row.limits).map(([name, value]) => [name, String(value)])));
  const params = { rule: row.name };
  const body = () => ({ limits: { ...given.value } });
  openAction({
    title: `Limits of ${row.name}`,
    verb: "Save",
    body: () => (
      <div class="stack">
        <p>
          It fires while <code class="rule-expression">{row.expression}</code> holds for {duration(row.for)}.
        </p>
        <div class="form-grid">
          {Object.keys(row.limits).map((name) => (
            <TextField key={name} label={name} value={given.value[name] ?? ""} onValue={(value) => (given.value = { ...given.value, [name]: value })} help="A number, or with a unit: 15m, 10%, 2GiB" />
          ))}
        </div>
      </div>
    ),
    request: () => requestOf("put_alert_rule", params, body()),
    cli: () => cliLine("alert", "set", row.name, ...Object.entries(given.value).map(([name, value]) => `${name}=${value}`)),
    run: async () => {
      await call("put_alert_rule", params, body());
      return `The limits of ${row.name} are changed.`;
    },
    done,
  });
}

function Destinations() {
  const loaded = useLoad((aborted) => call("list_alert_destinations", {}, undefined, aborted), [], 5);
  const columns: Column<DestinationView>[] = [
    { id: "name", title: "Destination", name: true, sort: (row) => row.name, cell: (row) => row.name },
    { id: "kind", title: "Kind", sort: (row) => row.kind, cell: (row) => row.kind },
    { id: "target", title: "To", cut: true, cell: (row) => row.target },
    { id: "what", title: "Alerts", cell: (row) => `${row.rules.join(", ") || "all"}, from ${row.severity}` },
    { id: "accepted", title: "Accepted", num: true, cell: (row) => count(row.accepted) },
    { id: "failed", title: "Failed", num: true, cell: (row) => <span class={row.failed ? "bad" : ""} title={row.error ?? undefined}>{count(row.failed)}</span> },
    { id: "last", title: "Last accepted", num: true, cell: (row) => (row.last_accepted ? <Time at={row.last_accepted} ago /> : "never") },
    {
      id: "action",
      title: "Action",
      num: true,
      cell: (row) =>
        mayChange() ? (
          <Button small aria-label={`Send a test to ${row.name}`} onClick={() => openTest(undefined, row.name, loaded.reload)}>
            Test…
          </Button>
        ) : null,
    },
  ];
  return (
    <Card title="Destinations" flush>
      <Show of={loaded}>
        {(found) => (
          <DataTable
            caption="Destinations of notifications"
            columns={columns}
            rows={found.destinations}
            rowKey={(row) => row.name}
            sort="name"
            empty={
              <Empty title="No destinations">
                <p>Alerts are shown here and sent nowhere. The configuration names who gets them:</p>
                <p>
                  <code>[alerts] webhook = "https://…"</code>
                </p>
              </Empty>
            }
          />
        )}
      </Show>
    </Card>
  );
}

function openTest(rule?: string, destination?: string, done?: () => void): void {
  const body = { ...(rule ? { alert: rule } : {}), ...(destination ? { destination } : {}) };
  openAction({
    title: destination ? `Send a test to ${destination}` : `Send a test of ${rule}`,
    verb: "Send",
    body: () => <p>A sample that is marked as a test is sent to {destination ?? "all destinations"}. No alert is changed.</p>,
    request: () => requestOf("test_alerts", {}, body),
    cli: () => cliLine("alert", "test", rule, destination && "--destination", destination),
    run: async () => {
      const { outcomes } = await call("test_alerts", {}, body);
      const failed = outcomes.filter((each) => !each.ok);
      if (outcomes.length === 0) throw new Problem(0, "destination", "There is no destination yet. [alerts] webhook = \"https://…\" in openq.toml adds one.");
      if (failed.length > 0) throw new Problem(0, "destination", failed.map((each) => `${each.destination}: ${each.error ?? "failed"}`).join("; "));
      return `Sent to ${outcomes.map((each) => each.destination).join(", ")}.`;
    },
    done,
  });
}

function openEnd(row: SilenceView, done: () => void): void {
  openAction({
    title: `End the silence of ${row.alert}`,
    verb: "End the silence",
    body: () => <p>Notifications about {row.alert}{row.subject ? ` of ${row.subject}` : ""} are sent again, at once if it is firing.</p>,
    request: () => requestOf("remove_silence", { silence: row.id }),
    cli: () => cliLine("alert", "unsilence", row.id),
    run: async () => {
      await call("remove_silence", { silence: row.id });
      return `${row.alert} is no longer silenced.`;
    },
    done,
  });
}

function Silences() {
  const loaded = useLoad((aborted) => call("list_silences", {}, undefined, aborted), [], 5);
  const columns: Column<SilenceView>[] = [
    { id: "alert", title: "Alert", name: true, sort: (row) => row.alert, cell: (row) => row.alert },
    { id: "subject", title: "Of", cell: (row) => row.subject || "everything" },
    { id: "until", title: "Until", sort: (row) => row.until, cell: (row) => <Time at={row.until} /> },
    { id: "by", title: "By", cell: (row) => row.by || "–" },
    { id: "reason", title: "Reason", cut: true, cell: (row) => row.reason || "–" },
    {
      id: "action",
      title: "Action",
      num: true,
      cell: (row) =>
        mayChange() && isAdmin() ? (
          <Button small aria-label={`End the silence of ${row.alert}`} onClick={() => openEnd(row, loaded.reload)}>
            End…
          </Button>
        ) : null,
    },
  ];
  return (
    <Card title="Silences" flush>
      <Show of={loaded}>
        {(found) => (
          <DataTable caption="Silences" columns={columns} rows={found.silences} rowKey={(row) => row.id} empty={<p class="state">No alert is silenced.</p>} />
        )}
      </Show>
    </Card>
  );
}

const HISTORY: Column<HistoryItem>[] = [
  { id: "time", title: "Time", sort: (row) => row.time, cell: (row) => <Time at={row.time} /> },
  { id: "state", title: "State", cell: (row) => <Badge tone={toneOf(row)}>{row.state}</Badge> },
  { id: "alert", title: "Alert", name: true, sort: (row) => row.alert, cell: (row) => row.alert },
  { id: "subject", title: "Of", cell: (row) => row.subject ?? "–" },
  { id: "summary", title: "What", cut: true, cell: (row) => row.summary },
];

function History() {
  const loaded = useLoad((aborted) => call("list_alert_history", { limit: 500 }, undefined, aborted), [], 5);
  return (
    <Card title="History" flush>
      <Show of={loaded}>
        {(found) => <DataTable caption="History of alerts" columns={HISTORY} rows={found.entries} rowKey={(row) => `${row.time} ${row.id} ${row.state}`} empty={<p class="state">No alert has fired yet.</p>} />}
      </Show>
    </Card>
  );
}
