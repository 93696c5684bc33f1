/** This server: health, facts, journal, damage, and reading its configuration again. */
import { signal } from "@preact/signals";

import { call, Problem, requestOf } from "../api/client";
import { cliLine } from "../api/lines";
import type { DamageView, HealthView, ReloadView, SegmentView } from "../api/schema";
import { Badge, Button, Card, Empty, Facts, Notice, Show, Time } from "../components/basics";
import { openAction } from "../components/dialog";
import { DataTable, type Column } from "../components/table";
import { bytes, count, duration, plural } from "../format";
import { useLoad } from "../load";
import { to } from "../router";
import { mayChange } from "../session";
import { Servers } from "./connections";

const reloaded = signal<ReloadView | undefined>(undefined);

export function Node() {
  return (
    <div class="stack">
      {reloaded.value && <ReloadNotice of={reloaded.value} />}
      <div class="columns">
        <Health />
        <ServerFacts />
      </div>
      <Servers />
      <Damage />
      <Segments />
    </div>
  );
}

/** A server that has failed answers its health with an error status; what is wrong is in its facts then. */
async function loadHealth(aborted: AbortSignal): Promise<HealthView> {
  try {
    return await call("show_health", {}, undefined, aborted);
  } catch (error) {
    if (!(error instanceof Problem) || error.status !== 503) throw error;
    const server = await call("show_server", {}, undefined, aborted);
    return { ok: false, status: "failed", detail: server.detail, disk_full: false, reasons: [], hint: null };
  }
}

function Health() {
  const loaded = useLoad(loadHealth, [], 3);
  return (
    <Card title="Health">
      <Show of={loaded}>
        {(health) => (
          <div class="stack tight">
            <p>
              <Badge tone={health.status === "ok" ? "good" : health.status === "degraded" ? "warn" : "bad"}>
                {health.status === "ok" ? "● ok" : health.status === "degraded" ? "▲ degraded" : "✕ failed"}
              </Badge>
            </p>
            {health.status !== "ok" && health.detail && <p>{health.detail}</p>}
            {health.reasons.length > 0 && (
              <ul class="reasons">
                {health.reasons.map((reason) => (
                  <li key={reason}>{reason}</li>
                ))}
              </ul>
            )}
            {health.disk_full && <Notice tone="bad">The disk is full: new messages are refused.</Notice>}
            {health.hint && <Notice tone="warn">{health.hint}</Notice>}
          </div>
        )}
      </Show>
    </Card>
  );
}

function ServerFacts() {
  const loaded = useLoad((aborted) => call("show_server", {}, undefined, aborted), [], 10);
  return (
    <Card title="Server" actions={mayChange() && <Button onClick={openReload}>Reload the configuration…</Button>}>
      <Show of={loaded}>
        {(server) => (
          <Facts
            items={[
              ["Version", server.version],
              ["Storage", server.storage],
              ["Queues", <a href={to(["queues"])}>{count(server.queues)}</a>],
              ["Started", <Time at={server.started} />],
              ["Up", duration(server.uptime)],
            ]}
          />
        )}
      </Show>
    </Card>
  );
}

function openReload(): void {
  openAction({
    title: "Reload the configuration",
    verb: "Reload",
    body: () => (
      <p>The server reads its configuration file, users and certificates again. An invalid file changes nothing. Connections stay, and no message is touched.</p>
    ),
    request: () => requestOf("reload_server", {}),
    cli: () => cliLine("config", "reload"),
    run: async () => {
      reloaded.value = await call("reload_server", {});
      return "The configuration is read again.";
    },
  });
}

function ReloadNotice({ of }: { of: ReloadView }) {
  const lines = [
    of.changed.length > 0 && `Changed: ${of.changed.join(", ")}.`,
    of.declared.length > 0 && `Declared: ${of.declared.join(", ")}.`,
    of.kept.length > 0 && `Kept, because flags or the environment set them: ${of.kept.join(", ")}.`,
    of.certificate && "The certificate was read again.",
    of.restart_needed.length > 0 && `These need a restart: ${of.restart_needed.join(", ")}.`,
  ].filter(Boolean);
  return (
    <Notice tone={of.restart_needed.length ? "warn" : "good"}>
      <div class="row between">
        <span>{lines.length ? lines.join(" ") : "The configuration is read again; nothing has changed."}</span>
        <Button small onClick={() => (reloaded.value = undefined)}>
          Dismiss
        </Button>
      </div>
    </Notice>
  );
}

const KINDS: Record<DamageView["kind"], string> = { found: "damaged", lost: "lost", set_aside: "set aside" };

const DAMAGE: Column<DamageView>[] = [
  { id: "time", title: "Found", sort: (row) => row.time, cell: (row) => <Time at={row.time} /> },
  { id: "kind", title: "What", sort: (row) => row.kind, cell: (row) => <Badge tone={row.kind === "lost" ? "bad" : "warn"}>{KINDS[row.kind]}</Badge> },
  { id: "queue", title: "Queue", sort: (row) => row.queue, cell: (row) => (row.queue ? <a href={to(["queues", row.queue])}>{row.queue}</a> : "–") },
  { id: "id", title: "Message", cut: true, cell: (row) => (row.id ? <span class="mono">{row.id}</span> : "–") },
  { id: "count", title: "Messages", num: true, sort: (row) => row.count, cell: (row) => count(row.count) },
  { id: "file", title: "Where", cut: true, cell: (row) => (row.file ? `${row.file} at ${row.offset}` : "–") },
  { id: "detail", title: "Cause", cut: true, cell: (row) => <span title={row.detail}>{row.detail}</span> },
];

function Damage() {
  const loaded = useLoad((aborted) => call("list_damage", {}, undefined, aborted), [], 10);
  const rows = loaded.value?.damage ?? [];
  return (
    <Card title="Damage" flush actions={mayChange() && rows.length > 0 && <Button onClick={() => openClear(rows.length, loaded.reload)}>Clear the list…</Button>}>
      <Show of={loaded} lines={2}>
        {() => <DataTable caption="Damage" columns={DAMAGE} rows={rows} rowKey={(row) => JSON.stringify([row.time, row.file, row.offset, row.id, row.queue])} empty={<p class="state">No damage was found.</p>} />}
      </Show>
    </Card>
  );
}

function openClear(entries: number, done: () => void): void {
  openAction({
    title: "Clear the list of damage",
    verb: "Clear the list",
    danger: true,
    body: () => <p>{plural(entries, "entry", "entries")} of the list {entries === 1 ? "is" : "are"} removed, and health is ok again. Nothing is restored: messages that were set aside stay so.</p>,
    request: () => requestOf("clear_damage", {}),
    cli: () => cliLine("damage", "clear"),
    run: async () => {
      const { cleared } = await call("clear_damage", {});
      return `${plural(cleared, "entry", "entries")} removed.`;
    },
    done,
  });
}

const SEGMENTS: Column<SegmentView>[] = [
  { id: "number", title: "Segment", name: true, sort: (row) => row.number, cell: (row) => row.number },
  { id: "state", title: "State", cell: (row) => (row.sealed ? <Badge>full</Badge> : <Badge tone="accent">written now</Badge>) },
  { id: "bytes", title: "Size", num: true, sort: (row) => row.bytes, cell: (row) => bytes(row.bytes) },
  { id: "first", title: "First record", sort: (row) => row.first, cell: (row) => (row.first ? <Time at={row.first} /> : "–") },
  { id: "last", title: "Last record", sort: (row) => row.last, cell: (row) => (row.last ? <Time at={row.last} /> : "–") },
];

/** A server in memory or on Redis has no journal files: that is no fault, and asking for them would be an error. */
async function loadSegments(aborted: AbortSignal): Promise<{ storage: string; segments?: SegmentView[] }> {
  const { storage } = await call("show_server", {}, undefined, aborted);
  return storage === "journal" ? { storage, ...(await call("list_segments", {}, undefined, aborted)) } : { storage };
}

function Segments() {
  const loaded = useLoad(loadSegments, [], 10);
  const rows = loaded.value?.segments ?? [];
  const total = rows.reduce((sum, row) => sum + row.bytes, 0);
  return (
    <Card title="Journal" flush actions={rows.length > 0 && <span class="soft">{`${plural(rows.length, "segment")}, ${bytes(total)}`}</span>}>
      <Show of={loaded}>
        {({ storage, segments }) =>
          segments ? (
            <DataTable caption="Segments of the journal" columns={SEGMENTS} rows={rows} rowKey={(row) => String(row.number)} sort="-number" empty={<p class="state">The journal is empty.</p>} />
          ) : (
            <Empty title="No journal files">
              <p>{storage === "redis" ? "Messages are kept in Redis." : "Messages are kept in memory only, and end with the process."}</p>
            </Empty>
          )
        }
      </Show>
    </Card>
  );
}
