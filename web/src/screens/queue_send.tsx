/** The form that sends messages: one, many, or the contents of a file. */
import { useEffect, useState } from "preact/hooks";

import { call, Problem, requestOf } from "../api/client";
import { parseJson } from "../api/json";
import { curlLine, repeated } from "../api/lines";
import { Button, Card, Choice, Notice, Progress } from "../components/basics";
import { CopyLine } from "../components/code";
import { TextArea, TextField } from "../components/field";
import { toast, toastProblem } from "../components/toast";
import { bytes, plural } from "../format";
import { toBase64, utf8 } from "../messages/decode";
import { draftOf, EMPTY, KINDS, sendLine, type SendForm } from "../messages/draft";
import { query, to } from "../router";
import type { TabProps } from "./queue";

const BATCH = 500;
const MAX_FILE = 8 << 20;

export function QueueSend({ queue, reload }: TabProps) {
  const name = queue.name;
  const [form, setForm] = useState<SendForm>(EMPTY);
  const [note, setNote] = useState("");
  const [sent, setSent] = useState<number>();
  const [lines, setLines] = useState<string[]>();
  const set = (changes: Partial<SendForm>) => setForm((old) => ({ ...old, ...changes }));
  const field = (key: "type" | "delay" | "ttl" | "group" | "dedup" | "priority" | "times") => ({ value: form[key], onValue: (value: string) => set({ [key]: value }) });
  const { message, times, problems } = draftOf(form);
  const total = lines ? lines.length : times;
  const from = query.value.get("from");

  useEffect(() => {
    if (!from) return;
    call("show_message", { queue: name, id: from }).then(
      (found) => {
        const isBytes = Boolean(found.payload_encoding);
        const isJson = !isBytes && (typeof found.payload !== "string" || found.payload_form === "json");
        set({
          kind: isBytes ? "base64" : isJson ? "json" : "text",
          body: isJson ? JSON.stringify(found.payload, null, 2) : String(found.payload),
          type: found.message_type ?? "",
          group: found.group ?? "",
          priority: found.priority ? String(found.priority) : "",
          attributes: Object.entries(found.attributes).filter(([key]) => !key.startsWith("openq.")).map(([key, value]) => [key, typeof value === "string" ? value : JSON.stringify(value)]),
        });
        setNote(`A copy of ${from}. It gets an id of its own.`);
      },
      (error: unknown) => setNote(error instanceof Problem ? `Message ${from} cannot be copied: ${error.message}` : ""),
    );
  }, [from]);

  async function choose(file: File | undefined): Promise<void> {
    setLines(undefined);
    if (!file) return;
    if (file.size > MAX_FILE) return toast(`${file.name} is larger than ${bytes(MAX_FILE)}.`, "bad");
    const data = new Uint8Array(await file.arrayBuffer());
    const text = utf8(data);
    set(text === undefined ? { kind: "base64", body: toBase64(data) } : { kind: /\.json$/i.test(file.name) ? "json" : "text", body: text });
    setNote(`${file.name}, ${bytes(file.size)}`);
  }

  async function submit(): Promise<void> {
    if (Object.keys(problems).length || sent !== undefined) return;
    try {
      let done = 0;
      let failed = 0;
      setSent(0);
      if (total === 1 && !lines) {
        const reply = await call("publish", { queue: name }, message);
        toast(reply.duplicate ? `The queue has it already: ${reply.id}` : `Sent: ${reply.id}`);
      } else {
        while (done < total) {
          const part = Array.from({ length: Math.min(BATCH, total - done) }, (_, index) => (lines ? { ...message, payload: lines[done + index] } : message));
          failed += (await call("publish_batch", { queue: name }, part)).failed ?? 0;
          done += part.length;
          setSent(done);
        }
        toast(`${plural(done - failed, "message")} sent.${failed ? ` ${plural(failed, "message")} refused.` : ""}`, failed ? "bad" : "good");
      }
      reload();
    } catch (error) {
      toastProblem(error);
    }
    setSent(undefined);
  }

  return (
    <form
      class="stack"
      onSubmit={(event) => {
        event.preventDefault();
        void submit();
      }}
      onKeyDown={(event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void submit();
      }}
    >
      {note && <Notice>{note}</Notice>}
      <div class="main-side">
        <div class="stack">
        <Card
          title="Body"
          actions={
            <>
              <Choice label="Kind of body" value={form.kind} options={KINDS} onChange={(kind) => set({ kind })} />
              {form.kind === "json" && (
                <Button small disabled={Boolean(problems.body)} onClick={() => set({ body: JSON.stringify(parseJson(form.body), null, 2) })}>
                  Format
                </Button>
              )}
            </>
          }
        >
          <div class="stack">
            <TextArea label="Body" unlabelled rows={14} value={form.body} onValue={(body) => (setLines(undefined), set({ body }))} wrong={form.body || form.kind !== "json" ? problems.body : undefined} help={form.kind === "json" && form.body && !problems.body ? "Valid JSON" : undefined} />
            <div class="row">
              <label class="check">
                <span>From a file</span>
                <input type="file" onChange={(event) => void choose(event.currentTarget.files?.[0])} />
              </label>
              {form.kind === "text" && form.body.includes("\n") && (
                <Button small aria-pressed={lines !== undefined} onClick={() => setLines(lines ? undefined : form.body.split(/\r?\n/).filter((line) => line !== ""))}>
                  Each line is a message
                </Button>
              )}
            </div>
          </div>
        </Card>
        {sent !== undefined && total > 1 && <Progress done={sent} total={total} />}
        <div class="row">
          <Button kind="primary" type="submit" disabled={sent !== undefined || Object.keys(problems).length > 0} title="Ctrl+Enter">
            {sent !== undefined ? "Sending…" : `Send ${plural(total || 1, "message")}`}
          </Button>
          <a href={to(["queues", name, "messages"])}>See the messages</a>
        </div>
        </div>
        <Card title="Properties">
          <div class="stack">
            <div class="form-grid narrow">
              <TextField label="Delay" placeholder="none" help="30s, 5m, 2h" wrong={problems.delay} {...field("delay")} />
              <TextField label="Time to live" placeholder="no end" help="30s, 5m, 2h" wrong={problems.ttl} {...field("ttl")} />
              <TextField label="Message type" {...field("type")} />
              <TextField label="Priority" placeholder="0" wrong={problems.priority} {...field("priority")} />
              <TextField label="Message group" {...field("group")} />
              <TextField label="Deduplication id" {...field("dedup")} />
              <TextField label="Times" wrong={problems.times} disabled={lines !== undefined} {...field("times")} />
            </div>
            <Attributes form={form} set={set} wrong={problems.attributes} />
          </div>
        </Card>
      </div>
      <details>
        <summary>Copy as a command</summary>
        <div class="stack tight">
          <CopyLine text={sendLine(name, form, lines !== undefined)} />
          <CopyLine text={lines ? curlLine(requestOf("publish_batch", { queue: name }, lines.map((line) => ({ ...message, payload: line })))) : repeated(curlLine(requestOf("publish", { queue: name }, message)), times)} />
        </div>
      </details>
    </form>
  );
}

function Attributes({ form, set, wrong }: { form: SendForm; set: (changes: Partial<SendForm>) => void; wrong?: string }) {
  const change = (index: number, part: 0 | 1, value: string) => set({ attributes: form.attributes.map((each, at) => (at !== index ? each : part === 0 ? [value, each[1]] : [each[0], value])) });
  return (
    <fieldset class="plain">
      <legend>Attributes</legend>
      <div class="stack tight">
        {form.attributes.map(([key, value], index) => (
          <div class="row nowrap-row" key={index}>
            <input class="input" aria-label={`Name of attribute ${index + 1}`} placeholder="name" value={key} onInput={(event) => change(index, 0, event.currentTarget.value)} />
            <input class="input" aria-label={`Value of attribute ${index + 1}`} placeholder="value" value={value} onInput={(event) => change(index, 1, event.currentTarget.value)} />
            <Button small kind="quiet" aria-label={`Remove attribute ${index + 1}`} onClick={() => set({ attributes: form.attributes.filter((_, at) => at !== index) })}>
              ✕
            </Button>
          </div>
        ))}
        {wrong && <p class="bad">{wrong}</p>}
        <div>
          <Button small onClick={() => set({ attributes: [...form.attributes, ["", ""]] })}>
            Add attribute
          </Button>
        </div>
      </div>
    </fieldset>
  );
}
