/** The smallest pieces: buttons, badges, cards, times, states of a screen. */
import type { ButtonHTMLAttributes, ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";

import type { Problem } from "../api/client";
import type { Loaded } from "../load";
import { clock, duration, relative, utc } from "../format";

type Tone = "good" | "warn" | "bad" | "accent" | undefined;

interface ButtonProps extends Omit<ButtonHTMLAttributes<HTMLButtonElement>, "class"> {
  kind?: "primary" | "danger" | "quiet";
  small?: boolean;
  children: ComponentChildren;
}

export function Button({ kind, small, children, type = "button", ...rest }: ButtonProps) {
  return (
    <button type={type} class={`button ${kind ?? ""} ${small ? "small" : ""}`} {...rest}>
      {children}
    </button>
  );
}

export function LinkButton(props: { href: string; kind?: "primary" | "quiet"; small?: boolean; children: ComponentChildren }) {
  return (
    <a class={`button ${props.kind ?? ""} ${props.small ? "small" : ""}`} href={props.href}>
      {props.children}
    </a>
  );
}

/** State is never shown by colour alone: a badge always has a word. */
export function Badge({ tone, children, title }: { tone?: Tone; children: ComponentChildren; title?: string }) {
  return (
    <span class={`badge ${tone ?? ""}`} title={title}>
      {children}
    </span>
  );
}

export function Card(props: { title?: ComponentChildren; actions?: ComponentChildren; flush?: boolean; children: ComponentChildren; label?: string }) {
  return (
    <section class="card" aria-label={props.label ?? (typeof props.title === "string" ? props.title : undefined)}>
      {(props.title || props.actions) && (
        <header>
          <h2>{props.title}</h2>
          {props.actions && <div class="row">{props.actions}</div>}
        </header>
      )}
      {props.flush ? props.children : <div class="inside">{props.children}</div>}
    </section>
  );
}

export function PageHead(props: { title: ComponentChildren; crumbs?: ComponentChildren; children?: ComponentChildren }) {
  return (
    <div class="page-head">
      <div>
        {props.crumbs && <p class="crumbs">{props.crumbs}</p>}
        <h1>{props.title}</h1>
      </div>
      {props.children && <div class="row">{props.children}</div>}
    </div>
  );
}

/** A moment in local time; UTC on hover. */
export function Time({ at, ago }: { at: string | number; ago?: boolean }) {
  useSeconds(ago ? 5 : 0);
  const date = new Date(at);
  const iso = Number.isNaN(date.getTime()) ? undefined : date.toISOString();
  return (
    <time dateTime={iso} title={utc(at)} class="nowrap">
      {ago ? relative(at) : clock(at)}
    </time>
  );
}

export function Age({ seconds }: { seconds: number | null | undefined }) {
  return <span class="nowrap">{duration(seconds)}</span>;
}

/** Draws again every `every` seconds, for texts such as "3 s ago". */
export function useSeconds(every: number): void {
  const [, setTurn] = useState(0);
  useEffect(() => {
    if (!every) return;
    const timer = setInterval(() => setTurn((old) => old + 1), every * 1000);
    return () => clearInterval(timer);
  }, [every]);
}

export function Loading({ lines = 4 }: { lines?: number }) {
  return (
    <div class="skeleton" role="status" aria-label="Loading">
      {Array.from({ length: lines }, (_, index) => (
        <i key={index} style={{ width: `${95 - ((index * 17) % 45)}%` }} />
      ))}
    </div>
  );
}

export function Failed({ problem, again }: { problem: Problem; again?: () => void }) {
  return (
    <div class="state" role="alert">
      <p class="title">{problem.status === 403 ? "You may not see this" : problem.status === 404 ? "Not found" : "This did not work"}</p>
      <p>{problem.message}</p>
      {problem.hint && <p>{problem.hint}</p>}
      {again && <Button onClick={again}>Try again</Button>}
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="state">
      {/* Not a heading: it stands on levels of any depth. */}
      <p class="title">{title}</p>
      {children}
    </div>
  );
}

/** Loading, failed, or the value. */
export function Show<T>({ of, lines, children }: { of: Loaded<T>; lines?: number; children: (value: T) => ComponentChildren }) {
  if (of.value !== undefined) return <>{children(of.value)}</>;
  if (of.problem) return <Failed problem={of.problem} again={of.reload} />;
  return <Loading lines={lines} />;
}

export function Figures({ items }: { items: { label: string; value: ComponentChildren; note?: ComponentChildren; tone?: Tone }[] }) {
  return (
    <dl class="figures">
      {items.map((item) => (
        <div class="figure" key={item.label}>
          <dt>{item.label}</dt>
          <dd class={item.tone}>
            {item.value} {item.note && <small>{item.note}</small>}
          </dd>
        </div>
      ))}
    </dl>
  );
}

export function Facts({ items }: { items: [string, ComponentChildren][] }) {
  return (
    <dl class="facts-list">
      {items.map(([name, value]) => (
        <>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </>
      ))}
    </dl>
  );
}

export function Tabs({ items, current, label }: { items: { id: string; title: ComponentChildren; href: string }[]; current: string; label: string }) {
  return (
    <nav class="tabs" aria-label={label}>
      {items.map((item) => (
        <a key={item.id} href={item.href} aria-current={item.id === current ? "page" : undefined}>
          {item.title}
        </a>
      ))}
    </nav>
  );
}

export function Notice({ tone, children }: { tone?: "good" | "warn" | "bad"; children: ComponentChildren }) {
  return (
    <div class={`notice ${tone ?? ""}`} role={tone === "bad" ? "alert" : "status"}>
      {children}
    </div>
  );
}

export function Progress({ done, total }: { done: number; total: number | null }) {
  const share = total ? Math.min(1, done / total) : 0;
  return (
    <div class="bar" role="progressbar" aria-valuemin={0} aria-valuemax={total ?? undefined} aria-valuenow={done} aria-label="Progress">
      <i style={{ width: `${share * 100}%` }} />
    </div>
  );
}

/** Choices side by side, of which one holds. */
export function Choice<T extends string>(props: { label: string; value: T; options: readonly (readonly [T, string])[]; onChange: (value: T) => void }) {
  return (
    <div class="group" role="group" aria-label={props.label}>
      {props.options.map(([value, title]) => (
        <Button small key={value} aria-pressed={value === props.value} onClick={() => props.onChange(value)}>
          {title}
        </Button>
      ))}
    </div>
  );
}
