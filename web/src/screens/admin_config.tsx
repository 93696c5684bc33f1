/** The configuration as the server runs with it: each value with where it came from. */
import { call } from "../api/client";
import { cliLine } from "../api/lines";
import type { ConfigSetting } from "../api/schema";
import { Card, Choice, Show } from "../components/basics";
import { CopyLine } from "../components/code";
import { FilterBox } from "../components/field";
import { DataTable, type Column } from "../components/table";
import { count } from "../format";
import { useLoad } from "../load";
import { query, setQuery } from "../router";

const SHOWN = [
  ["set", "Set here"],
  ["all", "All"],
] as const;
type Shown = (typeof SHOWN)[number][0];

const COLUMNS: Column<ConfigSetting>[] = [
  { id: "name", title: "Setting", name: true, width: "18%", sort: (row) => row.name, cell: (row) => <span class="mono">{row.name}</span> },
  { id: "value", title: "Value", width: "28%", cell: (row) => <Value of={row.value} /> },
  { id: "origin", title: "From", width: "18%", sort: (row) => row.origin, cell: (row) => (isDefault(row) ? <span class="soft">default</span> : <span class="origin">{row.origin}</span>) },
  { id: "help", title: "What it means", cell: (row) => <span class="soft">{row.help}</span> },
];

function Value({ of }: { of: string | null }) {
  if (of === null || of === "") return <span class="soft">none</span>;
  return <code>{of}</code>;
}

function isDefault(row: ConfigSetting): boolean {
  return row.origin === "default";
}

export function Configuration() {
  const loaded = useLoad((aborted) => call("show_config", {}, undefined, aborted), [], 30);
  const text = (query.value.get("filter") ?? "").toLowerCase();
  const shown: Shown = query.value.get("shown") === "all" ? "all" : "set";
  return (
    <div class="stack configuration">
      <Card
        title="Configuration"
        flush
        actions={
          <>
            <FilterBox label="Filter by name or meaning" value={query.value.get("filter") ?? ""} onValue={(value) => setQuery({ filter: value })} />
            <Choice<Shown> label="Settings" value={shown} options={SHOWN} onChange={(next) => setQuery({ shown: next === "set" ? undefined : next })} />
          </>
        }
      >
        <Show of={loaded}>
          {({ settings }) => {
            const rows = settings.filter((row) => (shown === "all" || text !== "" || !isDefault(row)) && `${row.name} ${row.help} ${row.value ?? ""}`.toLowerCase().includes(text));
            return (
              <DataTable
                caption="Configuration"
                columns={COLUMNS}
                rows={rows}
                rowKey={(row) => row.name}
                sort="name"
                empty={<p class="state">{text ? `No setting has “${text}” in it.` : `All ${count(settings.length)} settings have their defaults.`}</p>}
              />
            );
          }}
        </Show>
      </Card>
      <p class="soft">Flags outweigh the environment, which outweighs the configuration file. Secrets are never shown. The same on the machine of the server:</p>
      <CopyLine text={cliLine("config", "show", "--origin")} />
    </div>
  );
}
