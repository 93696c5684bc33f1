/** The screens: where each is, in which part of the menu, and the file that draws it, loaded when it is opened. */
import type { FunctionComponent } from "preact";

export interface Screen {
  /** First word of the address; "" is the overview. */
  path: string;
  title: string;
  section: "" | "Messages" | "Clients" | "Automation" | "Server";
  /** Not in the menu: reached from another screen. */
  hidden?: boolean;
  /** Keys that open it: "g o". */
  keys?: string;
  adminOnly?: boolean;
  /** For those who may see the server as a whole. */
  serverOnly?: boolean;
  load: () => Promise<{ default: FunctionComponent }>;
}

export const SCREENS: Screen[] = [
  { path: "", title: "Overview", section: "", keys: "g o", load: () => import("./overview") },
  { path: "queues", title: "Queues", section: "Messages", keys: "g q", load: () => import("./queues") },
  { path: "messages", title: "Message", section: "Messages", hidden: true, load: () => import("./message") },
  { path: "search", title: "Search", section: "Messages", hidden: true, load: () => import("./search") },
  { path: "components", title: "Components", section: "Server", hidden: true, load: () => import("./components") },
  { path: "dead-letters", title: "Dead letters", section: "Messages", keys: "g d", load: () => import("./dead_letters") },
  { path: "replay", title: "Replay", section: "Messages", keys: "g r", load: () => import("./replay") },
  { path: "exchanges", title: "Exchanges", section: "Messages", keys: "g e", load: () => import("./exchanges") },
  { path: "tasks", title: "Operations", section: "Messages", keys: "g t", load: () => import("./tasks") },
  { path: "connections", title: "Connections", section: "Clients", keys: "g c", load: () => import("./connections") },
  { path: "workers", title: "Workers", section: "Clients", keys: "g w", load: () => import("./workers") },
  { path: "alerts", title: "Alerts", section: "Automation", keys: "g a", serverOnly: true, load: () => import("./alerts") },
  { path: "schedules", title: "Schedules", section: "Automation", keys: "g s", load: () => import("./schedules") },
  { path: "webhooks", title: "Webhooks", section: "Automation", keys: "g h", load: () => import("./webhooks") },
  { path: "pipeline", title: "Pipeline", section: "Server", keys: "g p", load: () => import("./pipeline") },
  { path: "admin", title: "Administration", section: "Server", keys: "g u", adminOnly: true, load: () => import("./admin") },
];
