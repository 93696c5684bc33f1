/** "May X do Y on Z?", answered by the server with the rule that decides. */
import { call, requestOf } from "../api/client";
import { cliLine, curlLine } from "../api/lines";
import type { AccessView } from "../api/schema";
import { Badge, Card, Show } from "../components/basics";
import { CopyLine } from "../components/code";
import { SelectField, TextField } from "../components/field";
import { useLoad } from "../load";
import { queues } from "../live";
import { query, setQuery } from "../router";

const ACTIONS = [
  ["send", "send to"],
  ["receive", "receive from"],
  ["peek", "peek into"],
  ["manage", "manage"],
  ["admin", "administer the server"],
] as const;
type Action = (typeof ACTIONS)[number][0];

export function AccessTester({ users }: { users: string[] }) {
  const user = query.value.get("user") ?? users[0] ?? "";
  const given = query.value.get("action");
  const action: Action = ACTIONS.find(([id]) => id === given)?.[0] ?? "send";
  const queue = query.value.get("queue") ?? "";
  const isAsked = user !== "" && (action === "admin" || queue.trim() !== "");
  const params = { user, action, queue: action === "admin" ? undefined : queue };
  const loaded = useLoad((aborted) => (isAsked ? call("test_access", params, undefined, aborted) : Promise.resolve(undefined)), [user, action, queue]);
  return (
    <Card title="May a user do it?">
      <div class="stack">
        <div class="form-grid">
          <SelectField label="User" value={user} options={users.map((name) => [name, name] as const)} onValue={(value) => setQuery({ user: value })} />
          <SelectField<Action> label="May" value={action} options={ACTIONS} onValue={(value) => setQuery({ action: value })} />
          {action !== "admin" && (
            <>
              <TextField label="Queue" value={queue} onValue={(value) => setQuery({ queue: value })} list="access-queues" placeholder="orders" autocomplete="off" />
              <datalist id="access-queues">
                {[...queues.value.keys()].slice(0, 500).map((name) => (
                  <option key={name} value={name} />
                ))}
              </datalist>
            </>
          )}
        </div>
        {isAsked ? <Show of={loaded} lines={1}>{(found) => found && <Answer of={found} />}</Show> : <p class="soft">Name a queue; it need not exist yet.</p>}
        {isAsked && (
          <details>
            <summary>Copy as a command</summary>
            <div class="stack tight">
              <CopyLine text={curlLine(requestOf("test_access", params))} />
              <CopyLine text={cliLine("perm", "test", user, action, params.queue)} />
              <p class="soft">The second line reads the data directory: it runs on the machine of the server.</p>
            </div>
          </details>
        )}
      </div>
    </Card>
  );
}

function Answer({ of }: { of: AccessView }) {
  return (
    <div class="stack tight" aria-live="polite">
      <p>
        <Badge tone={of.allowed ? "good" : "bad"}>{of.allowed ? "✓ allowed" : "✕ denied"}</Badge> {of.text}
      </p>
      {of.depends_on_request && <p class="soft">A condition of the policy looks at the request (address, time, TLS): for some requests the answer may be another one.</p>}
    </div>
  );
}
