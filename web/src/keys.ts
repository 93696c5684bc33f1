/** Keyboard shortcuts. Each is registered with what it does, so that `?` can list them. */
import { useLayoutEffect } from "preact/hooks";

export interface Shortcut {
  /** One key, or two in a row: "/", "g o". */
  keys: string;
  what: string;
  run: () => void;
}

const SHORTCUTS = new Map<string, Shortcut>();
let prefix = "";
let prefixUntil = 0;

export function allShortcuts(): Shortcut[] {
  return [...SHORTCUTS.values()];
}

export function useShortcuts(shortcuts: Shortcut[], keys: unknown[] = []): void {
  // Before the screen is painted: a key works as soon as its screen is seen.
  useLayoutEffect(() => {
    for (const each of shortcuts) SHORTCUTS.set(each.keys, each);
    return () => {
      for (const each of shortcuts) if (SHORTCUTS.get(each.keys) === each) SHORTCUTS.delete(each.keys);
    };
  }, keys);
}

function isTyping(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
}

/** Enter on a button or a link is for that button or link, and not for the row of a table. */
function isPressed(event: KeyboardEvent): boolean {
  return event.key === "Enter" && event.target instanceof Element && event.target.closest("a, button, summary") !== null;
}

export function listenForKeys(): void {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || isPressed(event)) return;
    // A dialog has the keyboard for itself.
    if (document.querySelector("dialog[open]")) return;
    const typed = event.timeStamp < prefixUntil ? `${prefix} ${event.key}` : event.key;
    const shortcut = SHORTCUTS.get(typed) ?? SHORTCUTS.get(event.key);
    prefix = event.key;
    prefixUntil = event.timeStamp + 1000;
    if (!shortcut) return;
    event.preventDefault();
    prefixUntil = 0;
    shortcut.run();
  });
}
