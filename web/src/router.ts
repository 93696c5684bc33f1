/** Addresses: every screen, filter, range and selection is in the URL, so that it can be shared. */
import { computed, signal } from "@preact/signals";

export const BASE = "/ui";

const current = signal(read());

function read(): { path: string; query: string } {
  const path = location.pathname.startsWith(BASE) ? location.pathname.slice(BASE.length) : location.pathname;
  return { path: path || "/", query: location.search };
}

addEventListener("popstate", () => {
  current.value = read();
});

export const path = computed(() => current.value.path);
/** The words of the path, decoded: `/queues/a%2Fb/messages` is ["queues", "a/b", "messages"]. */
export const words = computed(() => decodeWords(current.value.path));
export const query = computed(() => new URLSearchParams(current.value.query));

export function decodeWords(address: string): string[] {
  return address.split("/").filter(Boolean).map(decodeWord);
}

function decodeWord(word: string): string {
  try {
    return decodeURIComponent(word);
  } catch {
    return word;
  }
}

/** An address of the dashboard: `to(["queues", name], { tab: "messages" })`. */
export function to(parts: (string | number)[], parameters: Record<string, string | number | undefined | null> = {}): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null && value !== "") search.set(name, String(value));
  }
  const text = search.toString();
  return `${BASE}/${parts.map((part) => encodeURIComponent(String(part))).join("/")}${text ? `?${text}` : ""}`;
}

export function navigate(address: string, replace = false): void {
  if (address === location.pathname + location.search) return;
  history[replace ? "replaceState" : "pushState"](null, "", address);
  current.value = read();
  if (!replace) scrollTo(0, 0);
}

/** Changes parameters of the current address; undefined or "" removes one. Does not add a step to the history. */
export function setQuery(changes: Record<string, string | number | undefined | null>): void {
  const search = new URLSearchParams(current.value.query);
  for (const [name, value] of Object.entries(changes)) {
    if (value === undefined || value === null || value === "") search.delete(name);
    else search.set(name, String(value));
  }
  const text = search.toString();
  navigate(`${location.pathname}${text ? `?${text}` : ""}`, true);
}

/** Links of the dashboard change the address without loading the page. Installed once, on the document. */
export function followLinks(): void {
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = (event.target as Element | null)?.closest?.("a");
    if (!link || link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
    if (!link.pathname.startsWith(`${BASE}/`) && link.pathname !== BASE) return;
    // A link inside the page (the skip link) stays a link.
    if (link.hash && link.pathname === location.pathname) return;
    event.preventDefault();
    navigate(link.pathname + link.search);
  });
}
