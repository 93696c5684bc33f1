/** A JSON value as a tree that can be folded; long lists are drawn in pieces. */
import { useState } from "preact/hooks";

import { digitsOf } from "../api/json";

const SHOWN = 200;
const LONG_TEXT = 4000;

export function Json({ value, depth = 0 }: { value: unknown; depth?: number }) {
  if (value === null || typeof value === "boolean") return <span class="word">{String(value)}</span>;
  if (typeof value === "number") return <span class="number">{String(value)}</span>;
  if (typeof value === "string") return <Text value={value} />;
  const digits = digitsOf(value);
  if (digits !== undefined) return <span class="number">{digits}</span>;
  if (Array.isArray(value) && isShort(value)) return <ShortList values={value} />;
  if (Array.isArray(value)) return <Tree open="[" close="]" entries={value.map((each, index) => [String(index), each])} keys={false} depth={depth} />;
  return <Tree open="{" close="}" entries={Object.entries(value as object)} keys depth={depth} />;
}

const SHORT_LIST = 72;

/** Numbers and words that fit in one line. */
function isShort(values: unknown[]): boolean {
  return values.length > 0 && values.length <= SHORT_LIST / 2 && values.every((each) => each === null || typeof each !== "object" || digitsOf(each) !== undefined) && JSON.stringify(values).length <= SHORT_LIST;
}

function ShortList({ values }: { values: unknown[] }) {
  return (
    <span>
      [
      {values.map((each, index) => (
        <>
          {index > 0 && ", "}
          <Json value={each} />
        </>
      ))}
      ]
    </span>
  );
}

function Text({ value }: { value: string }) {
  const [whole, setWhole] = useState(false);
  const isLong = value.length > LONG_TEXT && !whole;
  return (
    <span class="string">
      {JSON.stringify(isLong ? value.slice(0, LONG_TEXT) : value)}
      {isLong && (
        <button type="button" class="button small" onClick={() => setWhole(true)}>
          show all {value.length.toLocaleString()} characters
        </button>
      )}
    </span>
  );
}

function Tree(props: { open: string; close: string; entries: [string, unknown][]; keys: boolean; depth: number }) {
  const [shown, setShown] = useState(SHOWN);
  if (props.entries.length === 0) return <span>{props.open + props.close}</span>;
  return (
    <details class="json" open={props.depth < 3}>
      <summary>
        {props.open} <span class="soft">{props.entries.length}</span>
      </summary>
      <ul>
        {props.entries.slice(0, shown).map(([key, each]) => (
          <li key={key}>
            {props.keys && <span class="key">{JSON.stringify(key)}: </span>}
            <Json value={each} depth={props.depth + 1} />
          </li>
        ))}
      </ul>
      {props.entries.length > shown && (
        <button type="button" class="button small" onClick={() => setShown(shown + 1000)}>
          {(props.entries.length - shown).toLocaleString()} more
        </button>
      )}
      {props.close}
    </details>
  );
}
