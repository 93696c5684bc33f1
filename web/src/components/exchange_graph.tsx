/** Exchanges and queues with their bindings as lines. The table below has the same in words. */
import type { BindingView } from "../api/schema";
import { layOut, type Box, type Line } from "../exchange_graph";
import { oneLine, plural } from "../format";

const WIDTH = 180;
const HEIGHT = 30;
const ACROSS = 170;
const DOWN = 16;

interface Props {
  bindings: BindingView[];
  /** Ids of the boxes that the message of the question would pass. */
  passed: Set<string>;
}

export function ExchangeGraph({ bindings, passed }: Props) {
  const graph = layOut(bindings);
  if (graph.lines.length === 0) return null;
  const width = graph.columns * WIDTH + (graph.columns - 1) * ACROSS;
  const height = graph.rows * (HEIGHT + DOWN);
  const isPassed = (line: Line) => passed.has(line.from.id) && passed.has(line.to.id);
  return (
    <div class="table-box" tabIndex={0} role="region" aria-label="Graph of bindings">
      <svg class="graph" width={width + 4} height={height + 4} viewBox={`-2 -2 ${width + 4} ${height + 4}`} role="img" aria-label={`${plural(graph.lines.length, "connection")} between exchanges and queues; the table lists the bindings`}>
        {graph.lines.map((line) => (
          <Edge key={`${line.from.id} ${line.to.id}`} line={line} isPassed={isPassed(line)} />
        ))}
        {graph.boxes.map((box) => (
          <Node key={box.id} box={box} isPassed={passed.has(box.id)} />
        ))}
      </svg>
      {graph.hidden > 0 && <p class="soft">{plural(graph.hidden, "binding")} more in the table.</p>}
    </div>
  );
}

function left(box: Box): number {
  return box.column * (WIDTH + ACROSS);
}

function top(box: Box): number {
  return box.row * (HEIGHT + DOWN);
}

function Node({ box, isPassed }: { box: Box; isPassed: boolean }) {
  const x = left(box);
  const y = top(box);
  return (
    <g class={`${box.isQueue ? "queue" : "exchange"} ${isPassed ? "passed" : ""}`}>
      <title>{`${box.isQueue ? "queue" : "exchange"} ${box.name}`}</title>
      <rect x={x} y={y} width={WIDTH} height={HEIGHT} rx={box.isQueue ? 4 : 15} />
      <text x={x + 12} y={y + 19.5}>
        {oneLine(box.name, 22)}
      </text>
    </g>
  );
}

function Edge({ line, isPassed }: { line: Line; isPassed: boolean }) {
  const x1 = left(line.from) + WIDTH;
  const y1 = top(line.from) + HEIGHT / 2;
  const x2 = left(line.to);
  const y2 = top(line.to) + HEIGHT / 2;
  const bend = Math.max(40, Math.abs(x2 - x1) / 2);
  const label = line.keys.filter(Boolean).join(", ");
  return (
    <g class={isPassed ? "passed" : ""}>
      <path d={`M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`} />
      {label && (
        <text class="key" x={x2 - 10} y={y2 - 5} text-anchor="end">
          {oneLine(label, 20)}
        </text>
      )}
    </g>
  );
}
