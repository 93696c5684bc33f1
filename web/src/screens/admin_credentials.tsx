/** Access keys and tokens. A secret is shown once, by the answer that made it. */
import { signal } from "@preact/signals";

import { parseRules, ruleLine } from "../admin/rules";
import { call, Problem, requestOf } from "../api/client";
import { cliLine } from "../api/lines";
import type { KeyView, TokenView } from "../api/schema";
import { Badge, Button, Card, Empty, Notice, Show, Time } from "../components/basics";
import { Code } from "../components/code";
import { openAction } from "../components/dialog";
import { SelectField, TextArea, TextField } from "../components/field";
import { DataTable, type Column } from "../components/table";
import { plural } from "../format";
import { useLoad } from "../load";
import { query, setQuery } from "../router";
import { mayChange } from "../session";

const LIFETIMES = [
  ["", "Does not expire"],
  ["1", "1 day"],
  ["30", "30 days"],
  ["90", "90 days"],
  ["365", "1 year"],
] as const;
type Lifetime = (typeof LIFETIMES)[number][0];

const made = signal<{ what: string; text: string } | undefined>(undefined);

function expiry(days: Lifetime): string | null {
  return days ? new Date(Date.now() + Number(days) * 86_400_000).toISOString() : null;
}

export function Credentials() {
  const user = query.value.get("user") ?? "";
  const users = useLoad((aborted) => call("list_users", {}, undefined, aborted), []);
  const keys = useLoad((aborted) => call("list_keys", { user: user || undefined }, undefined, aborted), [user]);
  const tokens = useLoad((aborted) => call("list_tokens", { user: user || undefined }, undefined, aborted), [user]);
  const names = (users.value?.users ?? []).map((each) => each.name).sort();
  const options = [["", "All users"], ...names.map((name) => [name, name] as const)] as const;
  const canMake = mayChange() && names.length > 0;
  const none = names.length === 0 && users.value ? <p>A key or a token belongs to a user. Add a user first.</p> : undefined;
  return (
    <div class="stack">
      {made.value && (
        <Notice tone="good">
          <div class="stack tight">
            <p>{made.value.what} is shown only now.</p>
            <Code text={made.value.text} />
            <div class="row">
              <Button small onClick={() => (made.value = undefined)}>
                I have copied it
              </Button>
            </div>
          </div>
        </Notice>
      )}
      <div class="row">
        <SelectField label="User" value={user} options={options} onValue={(value) => setQuery({ user: value })} />
      </div>
      <Card
        title="Access keys"
        flush
        actions={
          canMake && (
            <Button kind="primary" onClick={() => openKey(names, user, keys.reload)}>
              Create a key
            </Button>
          )
        }
      >
        <Show of={keys}>
          {(found) => (
            <DataTable
              caption="Access keys"
              columns={keyColumns(keys.reload)}
              rows={found.keys}
              rowKey={(row) => row.id}
              empty={<Empty title="No access keys">{none ?? <p>boto3 and other AWS clients sign their requests with an access key.</p>}</Empty>}
            />
          )}
        </Show>
      </Card>
      <Card
        title="Tokens"
        flush
        actions={
          canMake && (
            <Button kind="primary" onClick={() => openToken(names, user, tokens.reload)}>
              Create a token
            </Button>
          )
        }
      >
        <Show of={tokens}>
          {(found) => (
            <DataTable
              caption="Tokens"
              columns={tokenColumns(tokens.reload)}
              rows={found.tokens}
              rowKey={(row) => `${row.user} ${row.name}`}
              empty={<Empty title="No tokens">{none ?? <p>The command line, the library and REST clients use a bearer token.</p>}</Empty>}
            />
          )}
        </Show>
      </Card>
    </div>
  );
}

function Expiry({ at }: { at: string | null }) {
  if (at === null) return <>never</>;
  return new Date(at).getTime() < Date.now() ? <Badge tone="warn">expired</Badge> : <Time at={at} />;
}

function keyColumns(reload: () => void): Column<KeyView>[] {
  return [
    { id: "id", title: "Key", name: true, sort: (row) => row.id, cell: (row) => <span class="mono">{row.id}</span> },
    { id: "user", title: "User", sort: (row) => row.user, cell: (row) => row.user },
    { id: "created", title: "Created", sort: (row) => row.created, cell: (row) => <Time at={row.created} /> },
    { id: "expires", title: "Expires", sort: (row) => row.expires, cell: (row) => <Expiry at={row.expires} /> },
    {
      id: "actions",
      title: "Action",
      num: true,
      cell: (row) =>
        mayChange() ? (
          <Button small aria-label={`Revoke key ${row.id}`} onClick={() => openRevokeKey(row, reload)}>
            Revoke…
          </Button>
        ) : null,
    },
  ];
}

function tokenColumns(reload: () => void): Column<TokenView>[] {
  return [
    { id: "name", title: "Token", name: true, sort: (row) => row.name, cell: (row) => row.name },
    { id: "user", title: "User", sort: (row) => row.user, cell: (row) => row.user },
    {
      id: "rules",
      title: "Limited to",
      cut: true,
      cell: (row) =>
        row.rules === null ? <span class="soft">all that its user may</span> : <span title={row.rules.map(ruleLine).join("\n")}>{row.rules.length === 1 ? ruleLine(row.rules[0]!) : plural(row.rules.length, "rule")}</span>,
    },
    { id: "created", title: "Created", sort: (row) => row.created, cell: (row) => <Time at={row.created} /> },
    { id: "expires", title: "Expires", sort: (row) => row.expires, cell: (row) => <Expiry at={row.expires} /> },
    {
      id: "actions",
      title: "Action",
      num: true,
      cell: (row) =>
        mayChange() ? (
          <Button small aria-label={`Revoke token ${row.name} of ${row.user}`} onClick={() => openRevokeToken(row, reload)}>
            Revoke…
          </Button>
        ) : null,
    },
  ];
}

function openKey(names: string[], chosen: string, reload: () => void): void {
  const user = signal(chosen || names[0]!);
  const days = signal<Lifetime>("");
  const body = () => ({ user: user.value, expires: expiry(days.value) });
  openAction({
    title: "Create an access key",
    verb: "Create",
    body: () => (
      <div class="form-grid">
        <SelectField label="User" value={user.value} options={names.map((name) => [name, name] as const)} onValue={(value) => (user.value = value)} />
        <SelectField label="Expires" value={days.value} options={LIFETIMES} onValue={(value) => (days.value = value)} />
      </div>
    ),
    request: () => requestOf("create_key", {}, body()),
    cli: () => cliLine("key", "create", user.value),
    run: async () => {
      const key = await call("create_key", {}, body());
      made.value = { what: `The secret of access key ${key.id} of ${key.user}`, text: `export AWS_ACCESS_KEY_ID=${key.id}\nexport AWS_SECRET_ACCESS_KEY=${key.secret ?? ""}` };
      return "The secret is shown at the top of the page.";
    },
    done: reload,
  });
}

function openToken(names: string[], chosen: string, reload: () => void): void {
  const user = signal(chosen || names[0]!);
  const name = signal("");
  const days = signal<Lifetime>("90");
  const rules = signal("");
  const body = () => ({ user: user.value, name: name.value, expires: expiry(days.value), rules: rules.value.trim() ? parseRules(rules.value).rules : null });
  openAction({
    title: "Create a token",
    verb: "Create",
    body: () => (
      <div class="stack">
        <div class="form-grid">
          <SelectField label="User" value={user.value} options={names.map((each) => [each, each] as const)} onValue={(value) => (user.value = value)} />
          <TextField label="Name" placeholder="laptop" value={name.value} onValue={(value) => (name.value = value)} required autofocus />
          <SelectField label="Expires" value={days.value} options={LIFETIMES} onValue={(value) => (days.value = value)} />
        </div>
        <TextArea
          label="Limited to"
          rows={2}
          placeholder="allow send orders*"
          value={rules.value}
          onValue={(value) => (rules.value = value)}
          wrong={parseRules(rules.value).wrong}
          help="Rules, one a line. Empty: all that its user may. A token never may more than its user."
        />
      </div>
    ),
    request: () => requestOf("create_token", {}, body()),
    cli: () =>
      cliLine(
        "token",
        "create",
        user.value,
        "--name",
        name.value || "NAME",
        days.value && "--expires",
        days.value ? `${days.value}d` : undefined,
        ...parseRules(rules.value).rules.flatMap((rule) => (rule.effect === "allow" ? ["--allow", rule.actions.join(","), rule.queues ?? "*"] : [])),
      ),
    run: async () => {
      const wrong = name.value ? parseRules(rules.value).wrong : "The token needs a name.";
      if (wrong) throw new Problem(0, "form", wrong);
      const token = await call("create_token", {}, body());
      made.value = { what: `Token ${token.name} of ${token.user}`, text: token.token ?? "" };
      return "The token is shown at the top of the page.";
    },
    done: reload,
  });
}

function openRevokeKey(key: KeyView, reload: () => void): void {
  openAction({
    title: `Revoke access key ${key.id}`,
    verb: "Revoke",
    danger: true,
    body: () => <p>Requests of {key.user} that are signed with it are refused from then on. It cannot be brought back.</p>,
    request: () => requestOf("revoke_key", { id: key.id }),
    cli: () => cliLine("key", "revoke", key.id),
    run: async () => {
      await call("revoke_key", { id: key.id });
      return `Access key ${key.id} is revoked.`;
    },
    done: reload,
  });
}

function openRevokeToken(token: TokenView, reload: () => void): void {
  const params = { user: token.user, name: token.name };
  openAction({
    title: `Revoke token ${token.name} of ${token.user}`,
    verb: "Revoke",
    danger: true,
    body: () => <p>Clients with this token, and sessions that were begun with it, are refused from then on. It cannot be brought back.</p>,
    request: () => requestOf("revoke_token", params),
    cli: () => cliLine("token", "revoke", token.user, token.name),
    run: async () => {
      await call("revoke_token", params);
      return `Token ${token.name} of ${token.user} is revoked.`;
    },
    done: reload,
  });
}
