/** Charts over time: uPlot with our colours, a summary in words, and the values as a table for who cannot see them. */
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

import { clock } from "../format";
import { theme } from "../theme";
import { axisTimes } from "./axis_times";
import { Button } from "./basics";

export interface Line {
  title: string;
  /** Name of a colour of tokens.css: "--chart-in". */
  colour: string;
  values: (number | null)[];
  dashed?: boolean;
}

interface ChartProps {
  label: string;
  /** Seconds since the epoch. */
  times: number[];
  lines: Line[];
  format: (value: number | null | undefined) => string;
  height?: number;
  /** What the axis counts in: whole numbers, or seconds, whose round numbers are minutes and hours. */
  steps?: "whole" | "time";
  /** Called with the span that was selected with the mouse, in seconds. */
  onSpan?: (from: number, to: number) => void;
  /** A part of the chart that is chosen, in seconds. */
  span?: [number, number];
}

function colourOf(name: string): string {
  // Colours are light-dark() pairs: the browser resolves them only in a property that is a colour.
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

export function Chart(props: ChartProps) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const [at, setAt] = useState<number | null>(null);
  const [asTable, setAsTable] = useState(false);
  const { times, lines, format } = props;
  const chosen = useRef(props.span);
  chosen.current = props.span;
  const shape = `${theme.value}|${lines.map((line) => line.title + line.colour).join()}`;

  useEffect(() => {
    const element = box.current;
    if (!element || asTable) return;
    const chart = new uPlot(options(props, element.clientWidth, setAt, () => chosen.current), [times, ...lines.map((line) => line.values)], element);
    plot.current = chart;
    const observer = new ResizeObserver(() => chart.setSize({ width: element.clientWidth, height: props.height ?? 200 }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      chart.destroy();
      plot.current = undefined;
    };
  }, [shape, asTable]);
  useEffect(() => {
    plot.current?.setData([times, ...lines.map((line) => line.values)]);
  }, [times, lines, props.span?.[0], props.span?.[1]]);

  const index = at ?? times.length - 1;
  return (
    <figure class="chart">
      <div class="row between">
        <figcaption class="legend">
          {lines.map((line) => (
            <span class="key" key={line.title}>
              <span class={`swatch ${line.dashed ? "dashed" : ""}`} style={{ color: `var(${line.colour})` }} />
              {line.title} <b>{format(line.values[index])}</b>
            </span>
          ))}
          {at !== null && <span class="soft">{clock((times[at] ?? 0) * 1000)}</span>}
        </figcaption>
        <Button small kind="quiet" aria-pressed={asTable} onClick={() => setAsTable(!asTable)} aria-label={`${props.label} as a table`}>
          Table
        </Button>
      </div>
      {times.length === 0 && <p class="soft">There are no values yet.</p>}
      {asTable ? <ValueTable {...props} /> : <div ref={box} role="img" aria-label={summary(props)} />}
    </figure>
  );
}

const decades = (from: number, to: number) => Array.from({ length: to - from }, (_, index) => [1, 2, 5].map((step) => step * 10 ** (from + index))).flat();
const HOURS = [1, 2, 6, 12, 24, 48, 120, 240, 480, 1200, 2400].map((each) => each * 3600);
const STEPS = { whole: decades(0, 13), time: [...decades(-6, 1).filter((each) => each <= 5), 10, 15, 30, 60, 120, 300, 600, 900, 1800, ...HOURS] };

function options(props: ChartProps, width: number, setAt: (index: number | null) => void, chosen: () => [number, number] | undefined): uPlot.Options {
  const text = colourOf("--text-soft");
  const line = colourOf("--line");
  const fill = colourOf("--accent-soft");
  const large = (parseFloat(getComputedStyle(document.documentElement).fontSize) || 14) / 14;
  const font = `${Math.round(12 * large)}px system-ui, sans-serif`;
  return {
    width,
    height: props.height ?? 200,
    padding: [null, 26, null, null],
    legend: { show: false },
    cursor: { y: false, drag: { x: props.onSpan !== undefined, y: false, setScale: false } },
    scales: { y: { range: (_u, _min, max) => [0, max > 0 ? max * 1.08 : 1] } },
    axes: [
      {
        stroke: text,
        font,
        grid: { stroke: line, width: 1 },
        ticks: { stroke: line, width: 1 },
        space: 70 * large,
        // A second line has the date where a day begins.
        size: (_u, values) => (values?.some((value) => value?.includes("\n")) ? 44 * large : 30 * large),
        values: (_u, times) => axisTimes(times),
      },
      {
        stroke: text,
        font,
        size: 56 * large,
        grid: { stroke: line, width: 1 },
        ticks: { show: false },
        incrs: props.steps ? STEPS[props.steps] : undefined,
        values: (_u, values) => values.map((value) => props.format(value)),
      },
    ],
    series: [
      {},
      ...props.lines.map((each) => ({
        label: each.title,
        stroke: colourOf(each.colour),
        width: 1.75,
        dash: each.dashed ? [5, 4] : undefined,
        points: { show: false },
        spanGaps: false,
      })),
    ],
    hooks: {
      drawClear: [
        (chart) => {
          const span = chosen();
          if (!span) return;
          const { left, top, width: full, height } = chart.bbox;
          const from = Math.max(left, chart.valToPos(span[0], "x", true));
          const until = Math.min(left + full, chart.valToPos(span[1], "x", true));
          chart.ctx.fillStyle = fill;
          if (until > from) chart.ctx.fillRect(from, top, until - from, height);
        },
      ],
      setCursor: [(chart) => setAt(chart.cursor.idx ?? null)],
      setSelect: [
        (chart) => {
          // Without values there are no times below the mouse.
          if (!props.onSpan || chart.select.width < 3 || chart.data[0].length === 0) return;
          props.onSpan(chart.posToVal(chart.select.left, "x"), chart.posToVal(chart.select.left + chart.select.width, "x"));
        },
      ],
    },
  };
}

/** One sentence for each line: the newest value, the largest. */
export function summary(props: Pick<ChartProps, "label" | "lines" | "format">): string {
  const parts = props.lines.map((line) => {
    const known = line.values.filter((value): value is number => value !== null);
    if (known.length === 0) return `${line.title}: no values`;
    return `${line.title}: now ${props.format(known.at(-1))}, at most ${props.format(Math.max(...known))}`;
  });
  return `${props.label}. ${parts.join("; ")}.`;
}

function ValueTable(props: ChartProps) {
  const rows = props.times.map((time, index) => [time, index] as const).reverse();
  return (
    <div class="table-box" style={{ maxHeight: `${(props.height ?? 200) + 40}px` }} tabIndex={0} role="region" aria-label={`${props.label}, values`}>
      <table class="data">
        <caption class="visually-hidden">{props.label}</caption>
        <thead>
          <tr>
            <th scope="col">Time</th>
            {props.lines.map((line) => (
              <th scope="col" class="num" key={line.title}>
                {line.title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map(([time, index]) => (
            <tr key={time}>
              <td>{clock(time * 1000)}</td>
              {props.lines.map((line) => (
                <td class="num" key={line.title}>
                  {props.format(line.values[index])}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** A line without axes for a table cell, the newest of `slots` values at the right. Decoration: the numbers stand beside it. */
export function Sparkline({ values, slots = values.length }: { values: readonly number[]; slots?: number }) {
  if (values.length < 2) return <svg class="spark" aria-hidden="true" />;
  const top = Math.max(...values, 1e-9);
  const step = 96 / (slots - 1);
  const first = slots - values.length;
  const path = values.map((value, index) => `${index ? "L" : "M"}${((first + index) * step).toFixed(1)} ${(20 - (value / top) * 18).toFixed(1)}`).join("");
  return (
    <svg class="spark" viewBox="0 0 96 22" preserveAspectRatio="none" aria-hidden="true">
      <path d={path} />
    </svg>
  );
}
