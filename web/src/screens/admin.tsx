/** Administration of the server: users, keys and tokens, permissions, audit log, node, configuration. */
import { Failed, PageHead, Tabs } from "../components/basics";
import { Problem } from "../api/client";
import { to, words } from "../router";
import { isAdmin } from "../session";
import { AuditLog } from "./admin_audit";
import { Configuration } from "./admin_config";
import { Credentials } from "./admin_credentials";
import { Node } from "./admin_node";
import { PermissionMatrix } from "./admin_permissions";
import { Users } from "./admin_users";
import "../styles/admin.css";

const TABS = [
  { id: "users", title: "Users", draw: Users },
  { id: "keys", title: "Keys and tokens", draw: Credentials },
  { id: "permissions", title: "Permissions", draw: PermissionMatrix },
  { id: "audit", title: "Audit log", draw: AuditLog },
  { id: "node", title: "Node", draw: Node },
  { id: "config", title: "Configuration", draw: Configuration },
];

export default function Admin() {
  const id = words.value[1] ?? "users";
  const tab = TABS.find((each) => each.id === id);
  if (!isAdmin()) return <Failed problem={new Problem(403, "forbidden", "This screen is for users with the role admin.")} />;
  return (
    <>
      <PageHead title="Administration" />
      <Tabs label="Administration" current={id} items={TABS.map((each) => ({ id: each.id, title: each.title, href: to(["admin", each.id]) }))} />
      {tab ? <tab.draw /> : <Failed problem={new Problem(404, "page", "There is no such page.")} />}
    </>
  );
}
