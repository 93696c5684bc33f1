/** Exchanges and bindings, and the answer to "where would this message go?". */
import { signal } from "@preact/signals";

import { call, requestOf } from "../api/client";
import { cliLine, curlLine } from "../api/lines";
import type { BindingView, ExchangeView } from "../api/schema";
import { Badge, Button, Card, Empty, PageHead, Show } from "../components/basics";
import { CopyLine } from "../components/code";
import { openAction } from "../components/dialog";
import { ExchangeGraph } from "../components/exchange_graph";
import { SelectField, TextField } from "../components/field";
import { DataTable, type Column } from "../components/table";
import { useLoad } from "../load";
import { query, setQuery, to } from "../router";
import { routes } from "../routing";
import { may } from "../session";
import "../styles/exchanges.css";

interface Topology {
  exchanges: ExchangeView[];
  bindings: BindingView[];
}

async function loadTopology(aborted: AbortSignal): Promise<Topology> {
  const [{ exchanges }, { bindings }] = await Promise.all([call("list_exchanges", {}, undefined, aborted), call("list_bindings", {}, undefined, aborted)]);
  return { exchanges, bindings };
}

export default function Exchanges() {
  const loaded = useLoad(loadTopology, [], 5);
  return (
    <div class="stack">
      <PageHead title="Exchanges">
        {may("manage") && (
          <Button kind="primary" onClick={() => openBind(loaded.value?.exchanges ?? [], loaded.reload)}>
            Add a binding
          </Button>
        )}
      </PageHead>
      <Show of={loaded}>
        {(topology) => (
          <>
            <WhereTo topology={topology} />
            <Card title="Bindings" flush>
              <DataTable
                caption="Bindings"
                columns={bindingColumns(loaded.reload)}
                rows={topology.bindings}
                rowKey={(row) => JSON.stringify([row.source, row.destination, row.to_exchange, row.key, row.arguments])}
                sort="source"
                empty={
                  <Empty title="No bindings">
                    <p>A binding tells an exchange which messages go to which queue. Every queue is reached through the default exchange by its name.</p>
                  </Empty>
                }
              />
            </Card>
            <Card title="Exchanges" flush>
              <DataTable caption="Exchanges" columns={EXCHANGE_COLUMNS} rows={topology.exchanges} rowKey={(row) => row.name || "(default)"} sort="name" />
            </Card>
          </>
        )}
      </Show>
    </div>
  );
}

const EXCHANGE_COLUMNS: Column<ExchangeView>[] = [
  { id: "name", title: "Exchange", name: true, sort: (row) => row.name, cell: (row) => row.name || "(default)" },
  { id: "kind", title: "Type", sort: (row) => row.kind, cell: (row) => <Badge>{row.kind}</Badge> },
  { id: "durable", title: "Durable", cell: (row) => (row.durable ? "yes" : "no") },
  { id: "auto_delete", title: "Auto-delete", cell: (row) => (row.auto_delete ? "yes" : "no") },
  { id: "internal", title: "Internal", cell: (row) => (row.internal ? "yes" : "no") },
  { id: "alternate", title: "Alternate exchange", cell: (row) => row.alternate ?? "–" },
];

function bindingColumns(reload: () => void): Column<BindingView>[] {
  return [
    { id: "source", title: "Exchange", name: true, sort: (row) => row.source, cell: (row) => row.source || "(default)" },
    { id: "key", title: "Routing key", sort: (row) => row.key, cell: (row) => <code>{row.key || "–"}</code> },
    { id: "arguments", title: "Arguments", cut: true, cell: (row) => (Object.keys(row.arguments).length ? <code>{JSON.stringify(row.arguments)}</code> : "–") },
    {
      id: "destination",
      title: "To",
      sort: (row) => row.destination,
      cell: (row) =>
        row.to_exchange ? (
          <>
            {row.destination} <Badge>exchange</Badge>
          </>
        ) : (
          <a href={to(["queues", row.destination])}>{row.destination}</a>
        ),
    },
    {
      id: "action",
      title: "Action",
      num: true,
      cell: (row) =>
        may("manage", row.destination) ? (
          <Button small aria-label={`Unbind ${row.destination} from ${row.source}`} onClick={() => openUnbind(row, reload)}>
            Unbind…
          </Button>
        ) : null,
    },
  ];
}

/** Where a message would go: worked out from the bindings, nothing is sent. */
function WhereTo({ topology }: { topology: Topology }) {
  const exchange = query.value.get("exchange") ?? firstOf(topology);
  const key = query.value.get("key") ?? "";
  const headers = query.value.get("headers") ?? "";
  const kind = topology.exchanges.find((each) => each.name === exchange)?.kind;
  const found = routes(topology.exchanges, topology.bindings, exchange, key, readHeaders(headers));
  const passed = new Set(found.flatMap((route) => [`queue ${route.queue}`, ...route.through.map((name) => `exchange ${name}`)]));
  return (
    <Card title="Where would this message go?">
      <div class="stack">
        <div class="form-grid">
          <SelectField
            label="Exchange"
            value={exchange}
            options={topology.exchanges.map((each) => [each.name, each.name || "(default)"] as const)}
            onValue={(value) => setQuery({ exchange: value })}
          />
          <TextField label="Routing key" value={key} onValue={(value) => setQuery({ key: value })} placeholder="orders.created" />
          {kind === "headers" && <TextField label="Headers" value={headers} onValue={(value) => setQuery({ headers: value })} placeholder="shop=north, kind=order" />}
        </div>
        <p aria-live="polite">
          {found.length === 0 ? (
            <span class="warn">▲ To no queue: it would be dropped, or returned if it is published as mandatory.</span>
          ) : (
            <>
              To{" "}
              {found.map((route, index) => (
                <>
                  {index > 0 && ", "}
                  <a href={to(["queues", route.queue])}>{route.queue}</a> <span class="soft">({route.through.join(" → ")})</span>
                </>
              ))}
            </>
          )}
        </p>
        <ExchangeGraph bindings={topology.bindings} passed={passed} />
        {exchange && (
          <details>
            <summary>Copy as a command</summary>
            <CopyLine text={cliLine("exchange", "route", exchange, key, ...Object.entries(readHeaders(headers)).flatMap(([name, value]) => ["--attribute", `${name}=${value}`]))} />
            <CopyLine text={curlLine(requestOf("test_route", { exchange }, { routing_key: key, ...(headers ? { attributes: readHeaders(headers) } : {}) }))} />
          </details>
        )}
      </div>
    </Card>
  );
}

/** An exchange to begin with: one that leads somewhere, if there is one. */
function firstOf({ exchanges, bindings }: Topology): string {
  const named = exchanges.filter((each) => each.name);
  return (named.find((each) => bindings.some((binding) => binding.source === each.name)) ?? named[0])?.name ?? "";
}

/** "a=1, b=x" as an object. */
export function readHeaders(text: string): Record<string, string> {
  const pairs = text.split(",").map((each) => each.split("="));
  return Object.fromEntries(pairs.filter(([name]) => name?.trim()).map(([name, ...value]) => [name!.trim(), value.join("=").trim()]));
}

function openBind(exchanges: ExchangeView[], done: () => void): void {
  const source = signal(exchanges.find((each) => each.name)?.name ?? "");
  const queue = signal("");
  const key = signal("");
  const body = () => ({ source: source.value, destination: queue.value, key: key.value });
  openAction({
    title: "Add a binding",
    verb: "Bind",
    body: () => (
      <div class="form-grid">
        <SelectField
          label="Exchange"
          value={source.value}
          options={exchanges.filter((each) => each.name).map((each) => [each.name, `${each.name} (${each.kind})`] as const)}
          onValue={(value) => (source.value = value)}
        />
        <TextField label="Queue" value={queue.value} onValue={(value) => (queue.value = value)} required />
        <TextField label="Routing key" value={key.value} onValue={(value) => (key.value = value)} help="A topic exchange knows * for a word and # for any words." />
      </div>
    ),
    request: () => requestOf("bind", {}, body()),
    cli: () => cliLine("exchange", "bind", source.value, queue.value, key.value),
    run: async () => {
      await call("bind", {}, body());
      return `${queue.value} is bound to ${source.value}.`;
    },
    done,
  });
}

function openUnbind(row: BindingView, done: () => void): void {
  const body = { source: row.source, destination: row.destination, key: row.key, to_exchange: row.to_exchange, arguments: row.arguments };
  openAction({
    title: `Unbind ${row.destination} from ${row.source}`,
    verb: "Unbind",
    danger: true,
    body: () => <p>New messages of this binding no longer reach {row.destination}. Messages that are there stay.</p>,
    request: () => requestOf("unbind", {}, body),
    cli: () => (Object.keys(row.arguments).length ? [] : cliLine("exchange", "unbind", row.source, row.destination, row.key, row.to_exchange && "--to-exchange")),
    run: async () => {
      await call("unbind", {}, body);
      return { text: "The binding is removed.", undo: () => void call("bind", {}, body).then(done) };
    },
    done,
  });
}
