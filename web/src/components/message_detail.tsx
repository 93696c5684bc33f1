/** One message: body, properties, timeline, bytes, and the same as a command; with what can be done to it. */
import { useState } from "preact/hooks";

import { call, requestOf } from "../api/client";
import { cliLine, curlLine } from "../api/lines";
import type { MessageView } from "../api/schema";
import { openCancel, openDelay, openEdit, openMove } from "../actions/messages";
import { useLoad } from "../load";
import { to } from "../router";
import { may } from "../session";
import { Badge, Button, Facts, LinkButton, Show, Time } from "./basics";
import { BodyView, RawView } from "./body_view";
import { Code, CopyLine } from "./code";
import { Json } from "./json";
import { TimelineView } from "./timeline_view";

const TABS = [
  ["body", "Body"],
  ["properties", "Properties"],
  ["timeline", "Timeline"],
  ["raw", "Raw"],
  ["curl", "As curl"],
] as const;
type Tab = (typeof TABS)[number][0];

export const STATE_WORDS: Record<string, string> = { ready: "ready", delayed: "delayed", in_flight: "in flight", gone: "gone" };

export function StateBadge({ message }: { message: MessageView }) {
  if (message.status === "dead") return <Badge tone="bad">✕ dead letter</Badge>;
  const state = message.state ?? "";
  return <Badge tone={state === "in_flight" ? "accent" : state === "delayed" ? "warn" : "good"}>{STATE_WORDS[state] ?? state}</Badge>;
}

export function MessageDetail({ queue, message, onClose, reload }: { queue: string; message: MessageView; onClose?: () => void; reload?: () => void }) {
  const [tab, setTab] = useState<Tab>("body");
  return (
    <section class="card detail" aria-label={`Message ${message.id}`}>
      <header class="nowrap-head">
        <h2>
          <a class="mono" href={to(["messages", message.id], { queue })}>
            {message.id}
          </a>{" "}
          <StateBadge message={message} />
        </h2>
        {onClose && (
          <Button small kind="quiet" aria-label="Close the message" onClick={onClose}>
            ✕
          </Button>
        )}
      </header>
      {(may("manage", queue) || may("send", queue)) && <MessageButtons queue={queue} message={message} reload={reload} />}
      <div class="tabs" role="tablist" aria-label="Parts of the message">
        {TABS.map(([id, title]) => (
          <button key={id} type="button" role="tab" id={`tab-${id}`} aria-controls="tab-panel" aria-selected={tab === id} onClick={() => setTab(id)}>
            {title}
          </button>
        ))}
      </div>
      <div class="pane" role="tabpanel" id="tab-panel" aria-labelledby={`tab-${tab}`} tabIndex={0}>
        {tab === "body" && <BodyView body={message} />}
        {tab === "properties" && <PropertiesView message={message} />}
        {tab === "timeline" && <LoadedTimeline queue={queue} id={message.id} />}
        {tab === "raw" && <RawView body={message} />}
        {tab === "curl" && <Lines queue={queue} id={message.id} />}
      </div>
    </section>
  );
}

export function MessageButtons({ queue, message, reload }: { queue: string; message: MessageView; reload?: () => void }) {
  const choice = { queue, ids: [message.id], done: reload };
  const mayManage = may("manage", queue);
  return (
    <div class="toolbar">
      {mayManage && (
        <Button small onClick={() => openMove(choice)}>
          Move…
        </Button>
      )}
      {mayManage && message.state !== "in_flight" && (
        <>
          <Button small onClick={() => openDelay(choice)}>
            Delay…
          </Button>
          <Button small onClick={() => openEdit(queue, message, reload)}>
            Edit…
          </Button>
        </>
      )}
      {may("send", queue) && (
        <LinkButton small href={to(["queues", queue, "send"], { from: message.id })}>
          Edit and send a copy
        </LinkButton>
      )}
      {mayManage && (
        <Button small onClick={() => openCancel(choice)}>
          Cancel…
        </Button>
      )}
    </div>
  );
}

export function LoadedTimeline({ queue, id }: { queue: string; id: string }) {
  const loaded = useLoad((signal) => call("show_timeline", { queue, id }, undefined, signal), [queue, id], 5);
  return (
    <Show of={loaded} lines={4}>
      {(timeline) => <TimelineView steps={timeline.steps} />}
    </Show>
  );
}

export function PropertiesView({ message, withTraceback = true }: { message: MessageView; withTraceback?: boolean }) {
  const items: [string, preact.ComponentChildren][] = [["Sent", <Time key="t" at={message.timestamp} />]];
  const add = (name: string, value: preact.ComponentChildren) => {
    if (value !== undefined && value !== null && value !== "") items.push([name, value]);
  };
  add("Type", message.message_type);
  add("Priority", String(message.priority));
  add("Deliveries", String(message.receive_count));
  add("Group", message.group);
  add("Publisher", message.publisher);
  add("Unique key", message.unique_key);
  add("Due", message.due_at && <Time at={message.due_at} />);
  add("Expires", message.expires_at && <Time at={message.expires_at} />);
  add("Consumer", message.consumer);
  add("Received", message.received_at && <Time at={message.received_at} />);
  add("Lease until", message.deadline && <Time at={message.deadline} />);
  add("Reason", message.reason);
  add("Position", message.position === undefined ? undefined : String(message.position));
  return (
    <div class="stack">
      <Facts items={items} />
      <div>
        <h3>Attributes</h3>
        {Object.keys(message.attributes).length ? (
          <div class="json">
            <Json value={message.attributes} />
          </div>
        ) : (
          <p class="soft">None</p>
        )}
      </div>
      {message.deaths && message.deaths.length > 0 && (
        <div>
          <h3>Dead-lettered</h3>
          <ul class="stack tight prose">
            {message.deaths.map((death, index) => (
              <li key={index}>
                <Time at={death.time} /> from <a href={to(["queues", death.queue])}>{death.queue}</a> after {death.receive_count} deliveries: {death.reason}
              </li>
            ))}
          </ul>
        </div>
      )}
      {withTraceback && message.traceback && (
        <div>
          <h3>Traceback</h3>
          <Code text={message.traceback} />
        </div>
      )}
    </div>
  );
}

function Lines({ queue, id }: { queue: string; id: string }) {
  return (
    <div class="stack tight">
      <p class="soft">Show it</p>
      <CopyLine text={curlLine(requestOf("show_message", { queue, id }))} />
      <CopyLine text={cliLine("search", queue, "--id", id, "--json")} />
      <p class="soft">Its history</p>
      <CopyLine text={curlLine(requestOf("show_timeline", { queue, id }))} />
      <CopyLine text={cliLine("timeline", queue, id)} />
      <p class="soft">Why it is not delivered</p>
      <CopyLine text={curlLine(requestOf("show_why", { queue, id }))} />
      <CopyLine text={cliLine("why", queue, id)} />
    </div>
  );
}
