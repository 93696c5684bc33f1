/** Short notes about what was done, with a way to undo it where there is one. */
import { signal } from "@preact/signals";

import { Problem } from "../api/client";
import { upright } from "../format";
import { Button } from "./basics";

interface Toast {
  id: number;
  tone: "good" | "bad" | "";
  text: string;
  action?: { title: string; run: () => void };
}

const toasts = signal<Toast[]>([]);
let last = 0;

export function toast(text: string, tone: Toast["tone"] = "good", action?: Toast["action"]): void {
  last += 1;
  const id = last;
  toasts.value = [...toasts.value.slice(-3), { id, tone, text, action }];
  // Errors and what can be undone stay longer.
  setTimeout(() => dismiss(id), tone === "bad" || action ? 12_000 : 5_000);
}

export function toastProblem(error: unknown): void {
  if (error instanceof DOMException && error.name === "AbortError") return;
  toast(error instanceof Problem ? [error.message, error.hint].filter(Boolean).join(" ") : String(error), "bad");
}

function dismiss(id: number): void {
  toasts.value = toasts.value.filter((each) => each.id !== id);
}

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((each) => (
        <div key={each.id} class={`toast ${each.tone}`}>
          <span>{upright(each.text)}</span>
          <span class="row">
            {each.action && (
              <Button small onClick={() => (dismiss(each.id), each.action?.run())}>
                {each.action.title}
              </Button>
            )}
            <Button small kind="quiet" aria-label="Dismiss" onClick={() => dismiss(each.id)}>
              ✕
            </Button>
          </span>
        </div>
      ))}
    </div>
  );
}
