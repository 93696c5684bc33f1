/** Users: who may sign in, with which role and rules. */
import { signal } from "@preact/signals";

import { call, Problem, requestOf } from "../api/client";
import { cliLine } from "../api/lines";
import { ROLES, type RuleView, type UserChange, type UserView } from "../api/schema";
import { parseRules, ruleLine } from "../admin/rules";
import { Badge, Button, Card, Empty, Notice, Show, Time } from "../components/basics";
import { openAction } from "../components/dialog";
import { CheckField, FilterBox, SelectField, TextArea, TextField } from "../components/field";
import { DataTable, type Column } from "../components/table";
import { plural } from "../format";
import { useLoad } from "../load";
import { query, setQuery, to } from "../router";
import { isOpen, loadSession, mayChange, session } from "../session";

const ROLE_OPTIONS = Object.entries(ROLES).map(([name, actions]) => [name, `${name}: ${describeRole(name, actions)}`] as const);

function describeRole(name: string, actions: readonly string[]): string {
  if (name === "admin") return "everything, users and the server too";
  return actions.length ? `${actions.join(", ")} on all queues` : "only what rules allow";
}

export function Users() {
  const loaded = useLoad((aborted) => call("list_users", {}, undefined, aborted), []);
  const filter = query.value.get("filter") ?? "";
  const users = loaded.value?.users ?? [];
  return (
    <div class="stack">
      {loaded.value && users.length === 0 && (
        <Notice tone="warn">This server has no users: everybody who reaches it may do everything. The first user ends this, so make it an admin with a password.</Notice>
      )}
      <Card
        title="Users"
        flush
        actions={
          <>
            <FilterBox label="Filter by name or role" value={filter} onValue={(value) => setQuery({ filter: value })} />
            {mayChange() && loaded.value && (
              <Button kind="primary" onClick={() => openAdd(users.length === 0, loaded.reload)}>
                Add a user
              </Button>
            )}
          </>
        }
      >
        <Show of={loaded}>
          {() => (
            <DataTable
              caption="Users"
              columns={columns(loaded.reload, new Set(users.map((each) => each.account)).size > 1)}
              rows={users.filter((each) => `${each.name} ${each.role}`.toLowerCase().includes(filter.toLowerCase()))}
              rowKey={(row) => row.name}
              sort="name"
              empty={<Empty title={users.length ? "No such user" : "No users"} />}
            />
          )}
        </Show>
      </Card>
    </div>
  );
}

function columns(reload: () => void, withAccount: boolean): Column<UserView>[] {
  return [
    { id: "name", title: "Name", name: true, sort: (row) => row.name, cell: (row) => row.name },
    { id: "state", title: "State", sort: (row) => Number(row.disabled), cell: (row) => (row.disabled ? <Badge tone="warn">disabled</Badge> : <Badge tone="good">active</Badge>) },
    { id: "role", title: "Role", sort: (row) => row.role, cell: (row) => <span class="nowrap">{row.role}{row.root && " (root)"}</span> },
    { id: "rules", title: "Rules", cut: true, sort: (row) => row.rules.length, cell: (row) => <Rules user={row} /> },
    { id: "password", title: "Password", sort: (row) => Number(row.has_password), cell: (row) => (row.has_password ? "set" : "none") },
    ...(withAccount ? [{ id: "account", title: "Account", sort: (row: UserView) => row.account, cell: (row: UserView) => row.account }] : []),
    { id: "created", title: "Created", sort: (row) => row.created_at, cell: (row) => <Time at={row.created_at} /> },
    { id: "actions", title: "Actions", num: true, cell: (row) => (mayChange() ? <Actions user={row} reload={reload} /> : null) },
  ];
}

function Rules({ user }: { user: UserView }) {
  if (user.rules.length === 0) return <span class="soft">none</span>;
  return (
    <a href={to(["admin", "permissions"], { filter: user.name })} title={user.rules.map(ruleLine).join("\n")}>
      {user.rules.length === 1 ? ruleLine(user.rules[0]!) : plural(user.rules.length, "rule")}
    </a>
  );
}

function Actions({ user, reload }: { user: UserView; reload: () => void }) {
  return (
    <span class="row end tools">
      <Button small aria-label={`Change ${user.name}`} onClick={() => openChange(user, reload)}>
        Change…
      </Button>
      <Button small aria-label={`Password of ${user.name}`} onClick={() => openPassword(user, reload)}>
        Password…
      </Button>
      <Button small aria-label={`Delete ${user.name}`} onClick={() => openDelete(user, reload)}>
        Delete…
      </Button>
    </span>
  );
}

const RULES_HELP = (
  <>
    One a line: <code>allow send,peek orders*</code> or <code>deny receive secrets</code>. A deny outweighs every allow.
  </>
);

function checkedRules(text: string): RuleView[] {
  const { rules, wrong } = parseRules(text);
  if (wrong) throw new Problem(0, "rules", wrong);
  return rules;
}

/** What is copied never holds the password: the shell takes it from a variable. */
function shownRequest(user: string, change: UserChange) {
  return requestOf("put_user", { user }, change.password ? { ...change, password: "PASSWORD" } : change);
}

function grantLines(user: string, rules: RuleView[]): string[] {
  return rules.map((rule) =>
    cliLine("perm", "grant", user, rule.actions.join(","), rule.queues ?? "*", rule.effect === "deny" && "--deny", rule.account && "--account", rule.account || undefined),
  );
}

function openAdd(isFirst: boolean, reload: () => void): void {
  const name = signal("");
  const password = signal("");
  const role = signal(isFirst ? "admin" : "none");
  const rules = signal("");
  const change = (given: RuleView[]): UserChange => ({ role: role.value, rules: given, ...(password.value ? { password: password.value } : {}) });
  openAction({
    title: "Add a user",
    verb: "Add",
    body: () => (
      <div class="stack">
        {isFirst && <Notice tone="warn">This is the first user: from now on every client and this page need a login.</Notice>}
        <div class="form-grid">
          <TextField label="Name" value={name.value} onValue={(value) => (name.value = value)} autocomplete="off" required autofocus />
          <TextField label="Password" type="password" autocomplete="new-password" value={password.value} onValue={(value) => (password.value = value)} help="Empty: keys and tokens only." />
        </div>
        <SelectField label="Role" value={role.value} options={ROLE_OPTIONS} onValue={(value) => (role.value = value)} />
        <TextArea label="Rules" rows={3} value={rules.value} onValue={(value) => (rules.value = value)} help={RULES_HELP} wrong={parseRules(rules.value).wrong} />
      </div>
    ),
    request: () => shownRequest(name.value || "NAME", change(parseRules(rules.value).rules)),
    cli: () =>
      [cliLine("user", "add", name.value || "NAME", "--role", role.value, password.value && "--password"), ...grantLines(name.value || "NAME", parseRules(rules.value).rules)].join(" && "),
    run: async () => {
      if (!name.value) throw new Problem(0, "name", "The user needs a name.");
      if (isFirst && !password.value) throw new Problem(0, "password", "The first user needs a password: otherwise nobody can sign in here.");
      const given = checkedRules(rules.value);
      const known = await call("list_users", {});
      // PUT would change a user that is there.
      if (known.users.some((each) => each.name === name.value)) throw new Problem(409, "exists", `User ${name.value} exists already.`);
      await call("put_user", { user: name.value }, change(given));
      return `User ${name.value} is added.`;
    },
    done: () => (isOpen() ? void loadSession() : reload()),
  });
}

function openChange(user: UserView, reload: () => void): void {
  const role = signal(user.role);
  const rules = signal(user.rules.map(ruleLine).join("\n"));
  const disabled = signal(user.disabled);
  const change = (given: RuleView[]): UserChange => ({ role: role.value, rules: given, disabled: disabled.value });
  openAction({
    title: `Change user ${user.name}`,
    verb: "Save",
    body: () => (
      <div class="stack">
        <SelectField label="Role" value={role.value} options={ROLE_OPTIONS} onValue={(value) => (role.value = value)} />
        <TextArea label="Rules" rows={4} value={rules.value} onValue={(value) => (rules.value = value)} help={RULES_HELP} wrong={parseRules(rules.value).wrong} />
        <CheckField label="Disabled: its password, keys and tokens are refused, and its sessions end" checked={disabled.value} onValue={(value) => (disabled.value = value)} />
        {user.name === session.value?.user && <Notice tone="warn">This is the user you are signed in as.</Notice>}
      </div>
    ),
    request: () => shownRequest(user.name, change(parseRules(rules.value).rules)),
    run: async () => {
      await call("put_user", { user: user.name }, change(checkedRules(rules.value)));
      return `User ${user.name} is changed.`;
    },
    done: reload,
  });
}

function openPassword(user: UserView, reload: () => void): void {
  const password = signal("");
  openAction({
    title: `Password of ${user.name}`,
    verb: "Set the password",
    body: () => (
      <div class="stack">
        <TextField label="New password" type="password" autocomplete="new-password" value={password.value} onValue={(value) => (password.value = value)} autofocus help="Empty: the user has no password, and signs in with a token." />
        <p>Its sessions end. Its keys and tokens stay.</p>
      </div>
    ),
    request: () => shownRequest(user.name, { password: password.value || null }),
    cli: () => cliLine("user", "passwd", user.name, !password.value && "--none"),
    run: async () => {
      await call("put_user", { user: user.name }, { password: password.value || null });
      return password.value ? `The password of ${user.name} is changed.` : `User ${user.name} has no password now.`;
    },
    done: reload,
  });
}

function openDelete(user: UserView, reload: () => void): void {
  openAction({
    title: `Delete user ${user.name}`,
    verb: "Delete with its credentials",
    danger: true,
    body: () => (
      <div class="stack">
        <p>Its keys and tokens are deleted with it, and its sessions end. Queues and messages stay. To keep it for later, disable it instead.</p>
        {user.name === session.value?.user && <Notice tone="warn">This is the user you are signed in as.</Notice>}
        <CredentialCount user={user.name} />
      </div>
    ),
    request: () => requestOf("delete_user", { user: user.name }),
    cli: () => cliLine("user", "rm", user.name),
    run: async () => {
      await call("delete_user", { user: user.name });
      return `User ${user.name} is deleted.`;
    },
    done: reload,
  });
}

function CredentialCount({ user }: { user: string }) {
  const loaded = useLoad(async (aborted) => {
    const [keys, tokens] = await Promise.all([call("list_keys", { user }, undefined, aborted), call("list_tokens", { user }, undefined, aborted)]);
    return [keys.keys.length, tokens.tokens.length] as const;
  }, [user]);
  return (
    <Show of={loaded} lines={1}>
      {([keys, tokens]) => (
        <p>
          <b>
            {plural(keys, "access key")} and {plural(tokens, "token")} are affected.
          </b>
        </p>
      )}
    </Show>
  );
}
