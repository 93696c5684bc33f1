/** Who may do what on which queues, as the roles and rules add up. */
import { permissionRows, QUEUE_ACTIONS, type PermissionRow, type Verdict } from "../admin/rules";
import { call } from "../api/client";
import { Badge, Card, Empty, Show } from "../components/basics";
import { FilterBox } from "../components/field";
import { DataTable, type Column } from "../components/table";
import { useLoad } from "../load";
import { query, setQuery } from "../router";
import { AccessTester } from "./admin_access";

export function PermissionMatrix() {
  const loaded = useLoad((aborted) => call("list_users", {}, undefined, aborted), []);
  const filter = query.value.get("filter") ?? "";
  const rows = permissionRows(loaded.value?.users ?? []).filter((row) => `${row.user.name} ${row.queues}`.toLowerCase().includes(filter.toLowerCase()));
  return (
    <div class="stack">
      <Card title="Permissions" flush actions={<FilterBox label="Filter by user or queue" value={filter} onValue={(value) => setQuery({ filter: value })} />}>
        <Show of={loaded}>
          {({ users }) => (
            <DataTable
              caption="Permissions of users on queues"
              columns={COLUMNS}
              rows={rows}
              rowKey={(row) => `${row.user.name} ${row.account} ${row.queues}`}
              empty={<Empty title={users.length ? "No such user or queue" : "No users"}>{users.length ? undefined : <p>Everybody may do everything. Permissions begin with the first user.</p>}</Empty>}
            />
          )}
        </Show>
      </Card>
      <p class="soft">A deny outweighs every allow, and what nothing allows is denied. The policy of a queue can allow or deny more; the test below takes it into account.</p>
      {loaded.value && loaded.value.users.length > 0 && <AccessTester users={loaded.value.users.map((user) => user.name)} />}
    </div>
  );
}

function Mark({ verdict }: { verdict: Verdict }) {
  if (verdict === "allow") return <Badge tone="good">✓ allowed</Badge>;
  if (verdict === "deny") return <Badge tone="bad">✕ denied</Badge>;
  return <span class="soft">no</span>;
}

const COLUMNS: Column<PermissionRow>[] = [
  {
    id: "user",
    title: "User",
    name: true,
    sort: (row) => row.user.name,
    cell: (row) => (
      <>
        {row.user.name} {row.user.disabled && <Badge tone="warn">disabled</Badge>}
      </>
    ),
  },
  { id: "queues", title: "Queues", sort: (row) => row.queues, cell: (row) => (row.queues === "*" ? "all queues" : <span class="mono">{row.queues}</span>) },
  { id: "account", title: "Account", sort: (row) => row.account, cell: (row) => (row.account === "*" ? "all accounts" : row.account) },
  ...QUEUE_ACTIONS.map((action): Column<PermissionRow> => ({ id: action, title: action[0]!.toUpperCase() + action.slice(1), sort: (row) => row.verdicts[action], cell: (row) => <Mark verdict={row.verdicts[action]} /> })),
  { id: "from", title: "From", cut: true, cell: (row) => <span title={row.from.join("\n")}>{row.from.join("; ") || "no role, no rules"}</span> },
];
