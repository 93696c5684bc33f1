/** Where the boxes and lines of a graph of exchanges and queues stand. */
import type { BindingView } from "./api/schema";

export interface Box {
  id: string;
  name: string;
  isQueue: boolean;
  column: number;
  row: number;
}

export interface Line {
  from: Box;
  to: Box;
  /** Routing keys of the bindings between the two. */
  keys: string[];
}

export interface Graph {
  boxes: Box[];
  lines: Line[];
  columns: number;
  rows: number;
  /** Bindings that are not drawn. */
  hidden: number;
}

export const MAX_BINDINGS = 80;

/** Exchanges from left to right as messages go, queues at the right end. */
export function layOut(bindings: BindingView[]): Graph {
  const drawn = bindings.slice(0, MAX_BINDINGS);
  const depth = depthsOf(drawn);
  const columns = Math.max(0, ...depth.values()) + 2;
  const boxes = new Map<string, Box>();
  const filled = new Map<number, number>();
  const place = (name: string, isQueue: boolean): Box => {
    const id = `${isQueue ? "queue" : "exchange"} ${name}`;
    const old = boxes.get(id);
    if (old) return old;
    const column = isQueue ? columns - 1 : (depth.get(name) ?? 0);
    const row = filled.get(column) ?? 0;
    filled.set(column, row + 1);
    const box = { id, name, isQueue, column, row };
    boxes.set(id, box);
    return box;
  };
  const lines = new Map<string, Line>();
  const sorted = [...drawn].sort((a, b) => (a.source === b.source ? (a.destination < b.destination ? -1 : 1) : a.source < b.source ? -1 : 1));
  for (const binding of sorted) {
    const from = place(binding.source, false);
    const to = place(binding.destination, !binding.to_exchange);
    const line = lines.get(`${from.id} ${to.id}`) ?? { from, to, keys: [] };
    line.keys.push(binding.key);
    lines.set(`${from.id} ${to.id}`, line);
  }
  return { boxes: [...boxes.values()], lines: [...lines.values()], columns, rows: Math.max(0, ...filled.values()), hidden: bindings.length - drawn.length };
}

/** How many exchanges are before each one, along the longest way. Bindings in a circle end it. */
function depthsOf(bindings: BindingView[]): Map<string, number> {
  const depth = new Map<string, number>();
  const between = bindings.filter((each) => each.to_exchange);
  for (let turn = 0; turn <= 4; turn += 1) {
    for (const { source, destination } of between) depth.set(destination, Math.max(depth.get(destination) ?? 0, Math.min((depth.get(source) ?? 0) + 1, 4)));
  }
  return depth;
}
