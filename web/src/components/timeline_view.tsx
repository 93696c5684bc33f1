/** The life of a message: a line to scale, and every step with its exact time. */
import { useState } from "preact/hooks";

import type { TimelineStepView } from "../api/schema";
import { clockExact, duration, utc } from "../format";
import { SPAN_WORDS, spansOf, ticksOf, toneOf, totalsOf } from "../messages/timeline";
import { to } from "../router";
import { session } from "../session";
import { Badge, Choice, Empty } from "./basics";
import { Code } from "./code";

const WIDTH = 1000;

export function TimelineView({ steps }: { steps: TimelineStepView[] }) {
  if (steps.length === 0) {
    return (
      <Empty title="No history">
        <p>Its history is no longer kept, or the queue keeps none.</p>
      </Empty>
    );
  }
  return (
    <div class="stack">
      <LifeLine steps={steps} />
      <Steps steps={steps} />
    </div>
  );
}

function LifeLine({ steps }: { steps: TimelineStepView[] }) {
  const [chosen, setChosen] = useState<"all" | "steps">();
  const whole = spansOf(steps, Date.now());
  const tail = whole.at(-1)?.open ? whole.at(-1) : undefined;
  // A dead letter of days would hide the seconds in which it failed.
  const hides = tail !== undefined && whole.length > 1 && tail.to - tail.from > 3 * (tail.from - whole[0]!.from);
  const part = chosen ?? (hides ? "steps" : "all");
  const spans = part === "steps" && tail && whole.length > 1 ? whole.slice(0, -1) : whole;
  const from = Date.parse(steps[0]!.time);
  const until = Math.max(...steps.map((step) => Date.parse(step.time)), ...spans.map((span) => span.to), from + 1);
  const place = (at: number) => ((at - from) / (until - from)) * WIDTH;
  const totals = totalsOf(spans);
  const words = totals.map(([kind, ms]) => `${SPAN_WORDS[kind]} ${duration(ms / 1000)}`).join(", ");
  return (
    <figure class="chart">
      <figcaption class="legend">
        {totals.map(([kind, ms]) => (
          <span class="key" key={kind}>
            <span class={`swatch block ${kind}`} />
            {SPAN_WORDS[kind]} <b>{duration(ms / 1000)}</b>
          </span>
        ))}
        <span class="soft">{duration((until - from) / 1000)}, to scale</span>
        {tail && whole.length > 1 && (
          <Choice
            label="Span of the line"
            value={part}
            options={[
              ["steps", "Until the last step"],
              ["all", "Until now"],
            ]}
            onChange={setChosen}
          />
        )}
      </figcaption>
      <svg class="life" viewBox={`0 0 ${WIDTH} 66`} preserveAspectRatio="none" role="img" aria-label={`Timeline to scale: ${words || "no time passed"}.`}>
        {spans.map((span, index) => (
          <rect key={index} class={span.kind} x={place(span.from)} y={10} width={Math.max(2, place(span.to) - place(span.from))} height={22}>
            <title>
              {SPAN_WORDS[span.kind]} in {span.queue}: {duration((span.to - span.from) / 1000)}
              {span.open ? " so far" : ""}
            </title>
          </rect>
        ))}
        {steps.map((step, index) => (
          <line key={index} class="mark" x1={place(Date.parse(step.time))} x2={place(Date.parse(step.time))} y1={5} y2={37} vector-effect="non-scaling-stroke">
            <title>
              {step.what} {utc(step.time)}
            </title>
          </line>
        ))}
        <line class="axis" x1={0} x2={WIDTH} y1={42} y2={42} vector-effect="non-scaling-stroke" />
      </svg>
      <Axis from={from} until={until} />
    </figure>
  );
}

/** Labels stand outside the SVG: a drawing that is stretched to its width would stretch them, too. */
function Axis({ from, until }: { from: number; until: number }) {
  return (
    <div class="life-axis" aria-hidden="true">
      {ticksOf(from, until).map((tick) => (
        <span key={tick} style={{ left: `${(tick / (until - from)) * 100}%` }}>
          {tick === 0 ? "0" : `+${duration(tick / 1000)}`}
        </span>
      ))}
    </div>
  );
}

function Steps({ steps }: { steps: TimelineStepView[] }) {
  return (
    <ol class="steps">
      {steps.map((step, index) => {
        const before = steps[index - 1];
        const passed = before && (Date.parse(step.time) - Date.parse(before.time)) / 1000;
        return (
          <li key={index}>
            <time class="mono nowrap" dateTime={step.time} title={utc(step.time)}>
              {clockExact(step.time)}
            </time>
            <span>
              <Badge tone={toneOf(step.what)}>{step.what}</Badge>
            </span>
            <span class="soft">
              <a href={to(["queues", step.queue])}>{step.queue}</a>
              {passed !== undefined && <> · after {duration(passed)}</>}
            </span>
            {step.detail && <span class="about"><LocalTimes text={step.detail} /></span>}
            {step.trace_id && (
              <span class="about soft">
                trace <TraceId of={step.trace_id} />
              </span>
            )}
            {step.traceback && (
              <details class="about">
                <summary>Traceback</summary>
                <Code text={step.traceback} />
              </details>
            )}
          </li>
        );
      })}
    </ol>
  );
}

const MOMENT = /(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)/;

/** A sentence of the server with its times as all others here: local, UTC on hover. */
function LocalTimes({ text }: { text: string }) {
  return (
    <>
      {text.split(MOMENT).map((part, index) =>
        index % 2 ? (
          <time key={index} class="nowrap" dateTime={part} title={utc(part)}>
            {clockExact(part)}
          </time>
        ) : (
          part
        ),
      )}
    </>
  );
}

/** With a link where the server knows who shows traces. Nothing is loaded from there by this page. */
function TraceId({ of }: { of: string }) {
  const template = session.value?.trace_url;
  if (!template) return <code>{of}</code>;
  return (
    <a href={template.replaceAll("{trace_id}", encodeURIComponent(of))} target="_blank" rel="noreferrer noopener external">
      <code>{of}</code> ↗
    </a>
  );
}
