/** Text that is copied: command lines, bodies. Everything is shown as text, never as HTML. */
import { useState } from "preact/hooks";

import { Button } from "./basics";

export function CopyButton({ text, title = "Copy", label }: { text: string; title?: string; label?: string }) {
  const [done, setDone] = useState(false);
  return (
    <Button
      small
      aria-label={label}
      onClick={async () => {
        await copy(text);
        setDone(true);
        setTimeout(() => setDone(false), 1500);
      }}
    >
      {done ? "Copied" : title}
    </Button>
  );
}

async function copy(text: string): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Without TLS there is no clipboard but the old command.
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

export function CopyLine({ text }: { text: string }) {
  return (
    <div class="code line">
      <pre tabIndex={0}>{text}</pre>
      <CopyButton text={text} />
    </div>
  );
}

export function Code({ text, copyable = true }: { text: string; copyable?: boolean }) {
  return (
    <div class="code">
      <pre tabIndex={0}>{text}</pre>
      {copyable && <CopyButton text={text} />}
    </div>
  );
}

/** A sentence with `code` in it. */
export function Ticked({ text }: { text: string }) {
  return <>{text.split("`").map((part, index) => (index % 2 ? <code key={index}>{part}</code> : part))}</>;
}
