/** Dialogs: a plain one, and the one for actions, which says what it touches before it runs. */
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { Problem, type Request } from "../api/client";
import { curlLine } from "../api/lines";
import { upright } from "../format";
import { Button, Notice } from "./basics";
import { CopyLine } from "./code";
import { toast, toastProblem } from "./toast";

export function Dialog(props: { title: string; onClose: () => void; wide?: boolean; children: ComponentChildren }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const element = dialog.current;
    const before = document.activeElement;
    element?.showModal();
    return () => {
      element?.close();
      // A dialog gives the focus back by itself only while it is in the document, and here it is removed already.
      if (before instanceof HTMLElement) before.focus({ preventScroll: true });
    };
  }, []);
  return (
    <dialog
      ref={dialog}
      class={props.wide ? "wide" : ""}
      aria-label={upright(props.title)}
      onCancel={(event) => {
        event.preventDefault();
        props.onClose();
      }}
      onClick={(event) => event.target === dialog.current && props.onClose()}
    >
      <div class="dialog">
        <div class="row between">
          <h2>{upright(props.title)}</h2>
          <Button small kind="quiet" aria-label="Close" onClick={props.onClose}>
            ✕
          </Button>
        </div>
        {props.children}
      </div>
    </dialog>
  );
}

export interface Action {
  title: string;
  /** What will happen, in a sentence or with fields of a form. Is drawn again when the form changes. */
  body?: () => ComponentChildren;
  danger?: boolean;
  wide?: boolean;
  /** How many messages it touches: a dry run. Runs again when `key` changes. */
  count?: (signal: AbortSignal) => Promise<number>;
  key?: () => string;
  noun?: [string, string];
  /** Text of the button that does it: "Redrive", followed by the count. */
  verb: string;
  /** What is sent, for "copy as curl": one line for each request. */
  request?: () => Request | Request[];
  /** Lines of curl that are more than one request each, instead of `request`. */
  curl?: () => string;
  /** The same for the command line. */
  cli?: () => string | string[];
  /** Does it; the result is the text of a toast, with an optional way back. */
  run: () => Promise<string | { text: string; undo?: () => void }>;
  done?: () => void;
}

const TYPING_MS = 350;
const current = signal<Action | null>(null);

export function openAction(action: Action): void {
  current.value = action;
}

export function ActionHost() {
  const action = current.value;
  return action ? <ActionDialog action={action} onClose={() => (current.value = null)} /> : null;
}

function ActionDialog({ action, onClose }: { action: Action; onClose: () => void }) {
  const [count, setCount] = useState<number | undefined>();
  const [problem, setProblem] = useState<Problem>();
  const [busy, setBusy] = useState(false);
  const key = action.key?.() ?? "";
  const isFirst = useRef(true);
  useEffect(() => {
    if (!action.count) return;
    const aborter = new AbortController();
    const look = () =>
      action.count!(aborter.signal).then(
        (value) => !aborter.signal.aborted && setCount(value),
        (error: unknown) => !aborter.signal.aborted && error instanceof Problem && setProblem(error),
      );
    setCount(undefined);
    setProblem(undefined);
    // Later ones follow the keyboard: not for every letter.
    const timer = setTimeout(() => void look(), isFirst.current ? 0 : TYPING_MS);
    isFirst.current = false;
    return () => {
      clearTimeout(timer);
      aborter.abort();
    };
  }, [key]);

  async function run(): Promise<void> {
    setBusy(true);
    try {
      const result = await action.run();
      onClose();
      if (typeof result === "string") toast(result);
      else toast(result.text, "good", result.undo && { title: "Undo", run: result.undo });
      action.done?.();
    } catch (error) {
      setBusy(false);
      if (error instanceof Problem) setProblem(error);
      else toastProblem(error);
    }
  }

  const [one, many] = action.noun ?? ["message", "messages"];
  const waits = action.count !== undefined && count === undefined;
  const curl = action.curl ? [action.curl()] : [action.request?.() ?? []].flat().map((request) => curlLine(request));
  const lines = [...[action.cli?.() ?? []].flat(), ...curl];
  return (
    <Dialog title={action.title} onClose={onClose} wide={action.wide}>
      {action.body?.()}
      {action.count && (
        <p aria-live="polite">
          {problem ? "" : waits ? "Counting…" : count === 0 ? `No ${one} is affected.` : <b>{`${count?.toLocaleString()} ${count === 1 ? `${one} is` : `${many} are`} affected.`}</b>}
        </p>
      )}
      {problem && (
        <Notice tone="bad">
          {problem.message} {problem.hint}
        </Notice>
      )}
      {lines.length > 0 && (
        <details>
          <summary>Copy as a command</summary>
          <div class="stack tight">
            {lines.map((line) => (
              <CopyLine key={line} text={line} />
            ))}
          </div>
        </details>
      )}
      <div class="row end">
        <Button onClick={onClose}>Cancel</Button>
        <Button kind={action.danger ? "danger" : "primary"} autofocus disabled={busy || waits || count === 0} onClick={run}>
          {busy ? "Working…" : count === undefined ? action.verb : `${action.verb} ${count.toLocaleString()}`}
        </Button>
      </div>
    </Dialog>
  );
}
