/**
 * A real <table> for every list: sorting, selection, keyboard (j, k, x, Enter), and rows that are drawn only
 * where they are seen, so that 10,000 queues cost as much as fifty.
 */
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

import { useShortcuts } from "../keys";
import { navigate } from "../router";

export interface Column<T> {
  id: string;
  title: string;
  /** What stands in the cell. */
  cell: (row: T) => ComponentChildren;
  /** What the column is sorted by; without it the column is not sortable. */
  sort?: (row: T) => string | number | null | undefined;
  num?: boolean;
  /** One line, cut with an ellipsis. */
  cut?: boolean;
  name?: boolean;
  width?: string;
}

export interface TableProps<T> {
  caption: string;
  columns: Column<T>[];
  rows: T[];
  rowKey: (row: T) => string;
  /** Address of a row, for Enter. */
  rowHref?: (row: T) => string;
  /** Opens a row beside the table, by a click or Enter. A cell has the link or button for it, too. */
  onOpen?: (row: T) => void;
  /** More keys for the marked row: "r" redrives it, "p" looks into it. */
  rowKeys?: { keys: string; what: string; run: (row: T) => void }[];
  /** Key of the row that is open. */
  current?: string;
  empty?: ComponentChildren;
  sort?: string;
  onSort?: (sort: string) => void;
  selected?: Set<string>;
  onSelect?: (selected: Set<string>) => void;
  /** Columns keep their widths, and every cell is one line. */
  fixed?: boolean;
  /** Shows the caption; otherwise only screen readers have it. */
  captionShown?: boolean;
}

const VIRTUAL_FROM = 120;
/** At the usual size of 14 px; a large screen has a larger one. */
const ROW_HEIGHT = 34;
const MARGIN_ROWS = 12;

function rowHeight(): number {
  return Math.round((ROW_HEIGHT * (parseFloat(getComputedStyle(document.documentElement).fontSize) || 14)) / 14);
}

/** "name" is ascending, "-name" descending. */
export function sortRows<T>(rows: T[], columns: Column<T>[], sort: string): T[] {
  const descending = sort.startsWith("-");
  const column = columns.find((each) => each.id === sort.replace(/^-/, ""));
  const value = column?.sort;
  if (!value) return rows;
  const keyed = rows.map((row) => [value(row), row] as const);
  keyed.sort(([a], [b]) => compare(a, b) * (descending ? -1 : 1));
  return keyed.map(([, row]) => row);
}

function compare(a: string | number | null | undefined, b: string | number | null | undefined): number {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a) < String(b) ? -1 : 1;
}

export function DataTable<T>(props: TableProps<T>) {
  const { columns, rowKey, selected, onSelect } = props;
  const [ownSort, setOwnSort] = useState(props.sort ?? "");
  const sort = props.onSort ? (props.sort ?? "") : ownSort;
  const setSort = props.onSort ?? setOwnSort;
  const rows = useMemo(() => sortRows(props.rows, columns, sort), [props.rows, sort]);
  const [cursor, setCursor] = useState(-1);
  const box = useRef<HTMLDivElement>(null);
  const isVirtual = rows.length > VIRTUAL_FROM;
  const drawn = isVirtual ? rowHeight() : 0;
  const [from, until] = useWindow(box, rows.length, isVirtual);

  // The row for the next key, also if that comes before the table is drawn again.
  const marked = useRef(-1);
  const move = (step: number) => {
    marked.current = Math.max(0, Math.min(rows.length - 1, marked.current + step));
    setCursor(marked.current);
  };
  useShortcuts(
    [
      { keys: "j", what: "Next row", run: () => move(1) },
      { keys: "k", what: "Previous row", run: () => move(-1) },
      { keys: "Enter", what: "Open the row", run: () => openRow(rows[marked.current]) },
      ...(onSelect ? [{ keys: "x", what: "Select the row", run: () => toggle(rows[marked.current]) }] : []),
      ...(props.rowKeys ?? []).map((each) => ({ keys: each.keys, what: each.what, run: () => withRow(each.run) })),
    ],
    [rows, cursor, selected],
  );
  useEffect(() => {
    const element = box.current;
    if (cursor < 0 || !element) return;
    if (isVirtual) {
      const height = rowHeight();
      const top = cursor * height;
      if (top < element.scrollTop || top > element.scrollTop + element.clientHeight - 2 * height) {
        element.scrollTop = top - element.clientHeight / 2;
      }
    } else element.querySelector("tr.cursor")?.scrollIntoView({ block: "nearest" });
  }, [cursor]);

  function withRow(run: (row: T) => void): void {
    // Without a mark: the open row, or the only one.
    const row = rows[marked.current] ?? rows.find((each) => rowKey(each) === props.current) ?? (rows.length === 1 ? rows[0] : undefined);
    if (row) run(row);
  }
  function openRow(row: T | undefined): void {
    if (!row) return;
    if (props.onOpen) props.onOpen(row);
    else if (props.rowHref) navigate(props.rowHref(row));
  }
  function toggle(row: T | undefined): void {
    if (!row || !onSelect) return;
    const next = new Set(selected);
    const key = rowKey(row);
    if (!next.delete(key)) next.add(key);
    onSelect(next);
  }

  if (rows.length === 0 && props.empty) return <>{props.empty}</>;
  const width = columns.length + (onSelect ? 1 : 0);
  const allSelected = rows.length > 0 && selected !== undefined && rows.every((row) => selected.has(rowKey(row)));
  return (
    // A box that scrolls is reachable by the keyboard.
    <div class={`table-box ${isVirtual ? "tall" : ""}`} ref={box} tabIndex={isVirtual ? 0 : undefined} role={isVirtual ? "region" : undefined} aria-label={isVirtual ? props.caption : undefined}>
      <table class={`data ${isVirtual || props.fixed ? "fixed" : ""}`} style={isVirtual || props.fixed ? { minWidth: leastWidth(columns) } : undefined} aria-rowcount={isVirtual ? rows.length + 1 : undefined}>
        <caption class={props.captionShown ? "" : "visually-hidden"}>{props.caption}</caption>
        <thead>
          <tr>
            {onSelect && (
              <th scope="col" style={{ width: "40px" }}>
                <input
                  type="checkbox"
                  aria-label="Select all rows"
                  checked={allSelected}
                  onChange={() => onSelect(new Set(allSelected ? [] : rows.map(rowKey)))}
                />
              </th>
            )}
            {columns.map((column) => (
              <th key={column.id} scope="col" class={[column.num && "num", isActions(column) && "actions"].filter(Boolean).join(" ")} style={column.width ? { width: column.width } : undefined} aria-sort={sortState(sort, column)}>
                {column.sort ? (
                  <button type="button" onClick={() => setSort(nextSort(sort, column))}>
                    {column.title}
                    <span aria-hidden="true">{sort === column.id ? " ↑" : sort === `-${column.id}` ? " ↓" : ""}</span>
                  </button>
                ) : (
                  column.title
                )}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {from > 0 && <Spacer rows={from} width={width} />}
          {rows.slice(from, until).map((row, offset) => {
            const key = rowKey(row);
            const index = from + offset;
            return (
              <tr
                key={key}
                class={[index === cursor && "cursor", key === props.current && "current"].filter(Boolean).join(" ") || undefined}
                onClick={(event) => {
                  if (props.onOpen && !(event.target as Element).closest("a, button, input, label") && !getSelection()?.toString()) props.onOpen(row);
                }}
                aria-selected={selected ? selected.has(key) : undefined}
                aria-rowindex={isVirtual ? index + 2 : undefined}
                style={isVirtual ? { height: `${drawn}px` } : undefined}
              >
                {onSelect && (
                  <td>
                    <input type="checkbox" aria-label={`Select ${key}`} checked={selected?.has(key)} onChange={() => toggle(row)} />
                  </td>
                )}
                {columns.map((column) => (
                  <td key={column.id} class={cellClass(column)}>
                    {column.cell(row)}
                  </td>
                ))}
              </tr>
            );
          })}
          {until < rows.length && <Spacer rows={rows.length - until} width={width} />}
        </tbody>
      </table>
    </div>
  );
}

/** Of columns that keep their widths. Narrower, those without a width would vanish: the box scrolls instead. */
function leastWidth<T>(columns: Column<T>[]): string {
  const pixels = columns.map((column) => (column.width?.endsWith("px") ? parseInt(column.width, 10) : column.width ? 110 : 180));
  return `${pixels.reduce((sum, each) => sum + each, 0)}px`;
}

function Spacer({ rows, width }: { rows: number; width: number }) {
  return (
    <tr class="spacer" aria-hidden="true" style={{ height: `${rows * rowHeight()}px` }}>
      <td colSpan={width} />
    </tr>
  );
}

/** Buttons stay in sight when the table is wider than its box. */
function isActions<T>(column: Column<T>): boolean {
  return /^Actions?$/.test(column.title);
}

function cellClass<T>(column: Column<T>): string {
  return [column.num && "num", isActions(column) && "actions", column.cut && "cut", column.name && "name"].filter(Boolean).join(" ");
}

function sortState<T>(sort: string, column: Column<T>): "ascending" | "descending" | undefined {
  return sort === column.id ? "ascending" : sort === `-${column.id}` ? "descending" : undefined;
}

/** Numbers begin with the largest, texts with the first. */
function nextSort<T>(sort: string, column: Column<T>): string {
  const order = column.num ? [`-${column.id}`, column.id] : [column.id, `-${column.id}`];
  return sort === order[0] ? order[1]! : order[0]!;
}

/** The rows that are seen in a box that scrolls. */
function useWindow(box: { current: HTMLDivElement | null }, rows: number, isVirtual: boolean): [number, number] {
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(900);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element || !isVirtual) return;
    const look = () => {
      setTop(Math.floor(element.scrollTop / rowHeight()));
      setHeight(element.clientHeight);
    };
    look();
    element.addEventListener("scroll", look, { passive: true });
    return () => element.removeEventListener("scroll", look);
  }, [isVirtual]);
  if (!isVirtual) return [0, rows];
  const from = Math.max(0, Math.min(top, rows - 1) - MARGIN_ROWS);
  return [from, Math.min(rows, top + Math.ceil(height / rowHeight()) + MARGIN_ROWS)];
}
