/** The line at the top: server, health, search, theme, user. */
import { useSignal, type Signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

import { call } from "./api/client";
import { Badge, Button } from "./components/basics";
import { toastProblem } from "./components/toast";
import { duration } from "./format";
import { useLoad } from "./load";
import { queues } from "./live";
import { BASE, navigate, to } from "./router";
import { session, signOut } from "./session";
import { nextTheme, theme } from "./theme";

export function Header({ menuOpen }: { menuOpen: Signal<boolean> }) {
  return (
    <header class="top">
      <span class="menu-button">
        <Button kind="quiet" aria-expanded={menuOpen.value} aria-controls="menu" aria-label="Menu" onClick={() => (menuOpen.value = !menuOpen.value)}>
          ☰
        </Button>
      </span>
      <a class="brand" href={`${BASE}/`} aria-label="OpenQ, overview">
        <svg viewBox="0 0 32 32" aria-hidden="true">
          <rect width="32" height="32" rx="7" fill="#3b5bdb" />
          <g fill="none" stroke="#fff" stroke-width="3" stroke-linecap="round">
            <path d="M8 10h11M8 16h16M8 22h8" />
            <path d="M20 20l4 4" />
          </g>
        </svg>
        <span>OpenQ</span>
      </a>
      <ServerFacts />
      <Search />
      <Button kind="quiet" onClick={nextTheme} aria-label={`Theme: ${theme.value}`} title={`Theme: ${theme.value}`}>
        {theme.value === "system" ? "◐" : theme.value === "light" ? "☀" : "☾"}
      </Button>
      <UserMenu />
    </header>
  );
}

function ServerFacts() {
  const health = useLoad((signal) => call("show_health", {}, undefined, signal), [], 5);
  const server = useLoad((signal) => call("show_server", {}, undefined, signal), [], 30);
  const status = health.value?.status;
  return (
    <div class="facts">
      {status && (
        <Badge tone={status === "ok" ? "good" : status === "degraded" ? "warn" : "bad"} title={health.value?.detail}>
          {status === "ok" ? "● ready" : status === "degraded" ? "▲ degraded" : "✕ failed"}
        </Badge>
      )}
      {server.value && (
        <span class="soft wide">
          {server.value.version} · {server.value.storage} · up {duration(server.value.uptime)}
        </span>
      )}
    </div>
  );
}

const MESSAGE_ID = /^[0-9a-f]{8}-[0-9a-f]{4}-|^[0-9A-Za-z_-]{20,}$/i;

function Search() {
  const text = useSignal("");
  const box = useRef<HTMLInputElement>(null);
  const wanted = text.value.toLowerCase();
  const found = text.value.length > 0 ? [...queues.value.keys()].filter((name) => name.toLowerCase().includes(wanted)).sort((a, b) => Number(b.toLowerCase().startsWith(wanted)) - Number(a.toLowerCase().startsWith(wanted)) || (a < b ? -1 : 1)).slice(0, 8) : [];
  function go(): void {
    const typed = text.value.trim();
    if (!typed) return;
    const exact = queues.value.has(typed) ? typed : found.length === 1 ? found[0] : undefined;
    if (exact) navigate(to(["queues", exact]));
    else if (MESSAGE_ID.test(typed)) navigate(to(["messages", typed]));
    else navigate(to(["search"], { text: typed }));
    text.value = "";
    box.current?.blur();
  }
  return (
    <form
      class="search menu"
      role="search"
      onSubmit={(event) => {
        event.preventDefault();
        go();
      }}
    >
      <input
        id="search"
        ref={box}
        class="input"
        type="search"
        placeholder="Search queues, ids, bodies ( / )"
        aria-label="Search queues, message ids and bodies"
        value={text.value}
        autocomplete="off"
        onInput={(event) => (text.value = event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Escape") {
            text.value = "";
            box.current?.blur();
          }
        }}
      />
      {text.value && (
        <div class="list">
          {found.map((name) => (
            <a key={name} href={to(["queues", name])} onClick={() => (text.value = "")}>
              {name}
            </a>
          ))}
          <a href={to(["search"], { text: text.value })} onClick={() => (text.value = "")}>
            Search bodies for “{text.value}”
          </a>
        </div>
      )}
    </form>
  );
}

function UserMenu() {
  const open = useSignal(false);
  const menu = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const close = (event: Event) => {
      if (!menu.current?.contains(event.target as Node)) open.value = false;
    };
    document.addEventListener("click", close);
    return () => document.removeEventListener("click", close);
  }, []);
  const now = session.value;
  if (!now) return null;
  if (!now.login_required) return <Badge title="The server has no users: everybody may do everything. Add one with: openq user add NAME">open access</Badge>;
  return (
    <div
      class="menu"
      ref={menu}
      onKeyDown={(event) => {
        if (event.key === "Escape") open.value = false;
      }}
    >
      <Button kind="quiet" aria-expanded={open.value} onClick={() => (open.value = !open.value)}>
        {now.user} ▾
      </Button>
      {open.value && (
        <div class="list">
          <button type="button" onClick={() => signOut(false).catch(toastProblem)}>
            Sign out
          </button>
          <button type="button" onClick={() => signOut(true).catch(toastProblem)}>
            Sign out everywhere
          </button>
        </div>
      )}
    </div>
  );
}
