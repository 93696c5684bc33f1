/** What can be done to a connection: close it. */
import { signal } from "@preact/signals";

import { call, requestOf } from "../api/client";
import { cliLine } from "../api/lines";
import type { ConnectionView } from "../api/schema";
import { Facts } from "../components/basics";
import { openAction } from "../components/dialog";
import { TextField } from "../components/field";
import { plural } from "../format";
import { isAdmin, mayChange, session } from "../session";

/** Its own user, and administrators. */
export function mayClose(row: Pick<ConnectionView, "user">): boolean {
  return mayChange() && (isAdmin() || row.user === session.value?.user);
}

export function openClose(row: ConnectionView, done: () => void): void {
  const reason = signal("");
  const params = () => ({ id: row.id, reason: reason.value || undefined });
  openAction({
    title: `Close the connection of ${row.peer}`,
    verb: "Close the connection",
    danger: true,
    body: () => (
      <>
        <Facts
          items={[
            ["Protocol", row.protocol],
            ["User", row.user || "–"],
            ["Client", row.name || row.client || "–"],
          ]}
        />
        <p>
          {row.in_flight > 0 ? `${plural(row.in_flight, "message")} in flight return to their queues at once.` : "It holds no messages."} The client may connect again.
        </p>
        <TextField label="Reason for the client" placeholder="closed by an operator" value={reason.value} onValue={(value) => (reason.value = value)} />
      </>
    ),
    request: () => requestOf("close_connection", params()),
    cli: () => cliLine("connections", "close", row.id, reason.value && "--reason", reason.value),
    run: async () => {
      await call("close_connection", params());
      return `The connection of ${row.peer} is closed.`;
    },
    done,
  });
}
