/** One queue: its head, its tabs, and what each tab shows. */
import type { FunctionComponent } from "preact";
import { useEffect } from "preact/hooks";

import { openDelete, openPurge, setPaused } from "../actions/queues";
import { call } from "../api/client";
import type { QueueView } from "../api/schema";
import { Badge, Button, Failed, Loading, PageHead, Tabs } from "../components/basics";
import { useLoad } from "../load";
import { navigate, to } from "../router";
import { isAdmin, may } from "../session";
import { QueueMessages } from "./queue_messages";
import { QueueOverview } from "./queue_overview";
import { QueueAccess, QueueConsumers, QueueDead, QueueSchedules, QueueWebhooks } from "./queue_related";
import { QueueSend } from "./queue_send";
import { QueueLimits, QueueSettings } from "./queue_settings";
import "../styles/queue.css";

export interface TabProps {
  queue: QueueView;
  reload: () => void;
}

interface TabEntry {
  id: string;
  title: string;
  show: FunctionComponent<TabProps>;
  adminOnly?: boolean;
  changes?: boolean;
}

const TABS: TabEntry[] = [
  { id: "overview", title: "Overview", show: QueueOverview },
  { id: "messages", title: "Messages", show: QueueMessages },
  { id: "send", title: "Send", show: QueueSend, changes: true },
  { id: "dead-letters", title: "Dead letters", show: QueueDead },
  { id: "consumers", title: "Consumers", show: QueueConsumers },
  { id: "settings", title: "Settings", show: QueueSettings },
  { id: "limits", title: "Limits", show: QueueLimits },
  { id: "permissions", title: "Permissions", show: QueueAccess, adminOnly: true },
  { id: "schedules", title: "Schedules", show: QueueSchedules },
  { id: "webhooks", title: "Webhooks", show: QueueWebhooks },
];

export function Queue({ name, tab }: { name: string; tab: string }) {
  const loaded = useLoad((signal) => call("show_queue", { queue: name }, undefined, signal), [name], 1);
  const shown = TABS.filter((each) => (!each.adminOnly || isAdmin()) && (!each.changes || may("send", name)));
  const current = shown.find((each) => each.id === tab);
  useEffect(() => {
    document.title = `${name} · ${current?.title ?? "Queue"} · OpenQ`;
  }, [name, tab]);
  const queue = loaded.value;
  const crumbs = <a href={to(["queues"])}>Queues</a>;
  if (!queue) {
    return (
      <>
        <PageHead title={name} crumbs={crumbs} />
        {loaded.problem ? <Failed problem={loaded.problem} again={loaded.reload} /> : <Loading lines={8} />}
      </>
    );
  }
  const Shown = current?.show;
  return (
    <>
      <PageHead
        crumbs={crumbs}
        title={
          <>
            {name} {queue.settings.paused && <Badge tone="warn">❚❚ paused</Badge>} {queue.settings.fifo && <Badge>FIFO</Badge>}
          </>
        }
      >
        {may("manage", name) && (
          <>
            <Button small onClick={() => void setPaused(name, !queue.settings.paused, loaded.reload)}>
              {queue.settings.paused ? "Resume" : "Pause"}
            </Button>
            <Button small onClick={() => openPurge(name, loaded.reload)}>
              Purge…
            </Button>
            <Button small onClick={() => openDelete(name, () => navigate(to(["queues"])))}>
              Delete…
            </Button>
          </>
        )}
      </PageHead>
      <Tabs label={`Parts of ${name}`} current={tab} items={shown.map((each) => ({ id: each.id, title: each.title, href: to(["queues", name, each.id]) }))} />
      {Shown ? <Shown queue={queue} reload={loaded.reload} /> : <p class="state">There is no such tab.</p>}
    </>
  );
}
