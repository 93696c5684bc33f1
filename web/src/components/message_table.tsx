/** The table of messages, of a queue and of a search over all queues. */
import type { MessageView } from "../api/schema";
import { count, oneLine, relative, utc } from "../format";
import { preview } from "../messages/decode";
import { to } from "../router";
import { Badge, Time, useSeconds } from "./basics";
import { StateBadge } from "./message_detail";
import type { Column } from "./table";

/** A message with the queue it was found in. */
export interface Row extends MessageView {
  queue: string;
}

export function rowKey(row: Pick<Row, "queue" | "id">): string {
  return `${row.queue}/${row.id}`;
}

function Ago({ at }: { at: string }) {
  useSeconds(5);
  return (
    <time class="nowrap" dateTime={at} title={utc(at)}>
      {relative(at)}
    </time>
  );
}

export function attributesText(row: MessageView): string {
  const shown = Object.entries(row.attributes).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`);
  if (row.message_type) shown.unshift(`type=${row.message_type}`);
  if (row.group) shown.unshift(`group=${row.group}`);
  return oneLine(shown.join(" "), 120);
}

/** The end of an id: the beginning is the same for all messages of a server. */
export function shortId(id: string): string {
  const shown = oneLine(id, 60);
  return shown.length > 14 ? `…${shown.slice(-10)}` : shown;
}

/** On a narrow screen the body needs the room. */
function isPhone(): boolean {
  return innerWidth <= 600;
}

interface Wanted {
  open: (row: Row) => void;
  queue?: boolean;
  due?: boolean;
  lease?: boolean;
  state?: boolean;
  /** Past messages: nothing is known of their deliveries. */
  past?: boolean;
  /** Some have failed: why stands beside the body. */
  reasons?: boolean;
  /** None has a type, a group or attributes: no column for them. */
  bare?: boolean;
  /** Only what matters most: a message is open beside the table. */
  narrow?: boolean;
}

export function messageColumns(wanted: Wanted): Column<Row>[] {
  const columns: Column<Row>[] = [
    { id: "age", title: "Sent", width: isPhone() ? "92px" : "112px", cell: (row) => <Ago at={row.timestamp} /> },
    {
      id: "id",
      title: "Id",
      width: isPhone() ? "80px" : "130px",
      cell: (row) => (
        <button type="button" class="link mono" title={row.id} onClick={() => wanted.open(row)}>
          {isPhone() ? `…${row.id.slice(-5)}` : shortId(row.id)}
        </button>
      ),
    },
  ];
  if (wanted.queue) columns.push({ id: "queue", title: "Queue", width: "160px", cut: true, cell: (row) => <a href={to(["queues", row.queue])}>{row.queue}</a> });
  if (wanted.state) columns.push({ id: "state", title: "State", width: "110px", cell: (row) => <StateBadge message={row} /> });
  columns.push({ id: "preview", title: "Body", cut: true, cell: (row) => <span class="body-line">{oneLine(preview(row), 160)}</span> });
  if (!wanted.narrow && !wanted.bare) columns.push(
    { id: "attributes", title: "Type and attributes", cut: true, width: "220px", cell: (row) => <span class="soft">{attributesText(row)}</span> },
  );
  if (wanted.reasons && !wanted.narrow) {
    columns.push({ id: "reason", title: "Reason", cut: true, width: "240px", cell: (row) => <span title={row.reason}>{row.reason ? oneLine(row.reason, 160) : "–"}</span> });
  }
  if (wanted.due) columns.push({ id: "due", title: "Due", width: "120px", cell: (row) => (row.due_at ? <Time at={row.due_at} ago /> : "–") });
  if (wanted.lease) {
    columns.push(
      { id: "consumer", title: "Consumer", width: "150px", cut: true, cell: (row) => row.consumer ?? "–" },
      { id: "lease", title: "Lease ends", width: "120px", cell: (row) => (row.deadline ? <Time at={row.deadline} ago /> : "with its connection") },
    );
  }
  if (wanted.past) return columns;
  columns.push({
    id: "deliveries",
    title: "Deliveries",
    num: true,
    width: "100px",
    cell: (row) => (row.receive_count > 1 || (row.reason && row.receive_count > 0) ? <Badge tone="warn" title={row.reason}>▲ {count(row.receive_count)}</Badge> : count(row.receive_count)),
  });
  return columns;
}
