/** Form fields with label, help and error. */
import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";

interface Common {
  label: string;
  help?: ComponentChildren;
  wrong?: string;
}

interface TextProps extends Common {
  value: string;
  onValue: (value: string) => void;
  placeholder?: string;
  required?: boolean;
  disabled?: boolean;
  autofocus?: boolean;
}

interface InputProps extends TextProps {
  type?: "text" | "password" | "number" | "search" | "datetime-local" | "url" | "email";
  min?: string;
  max?: string;
  step?: string;
  autocomplete?: string;
  /** Id of a <datalist> with suggestions. */
  list?: string;
}

export function TextField({ label, help, wrong, onValue, ...rest }: InputProps) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <input
        id={id}
        class="input"
        aria-invalid={wrong ? "true" : undefined}
        aria-describedby={help || wrong ? `${id}-help` : undefined}
        onInput={(event) => onValue(event.currentTarget.value)}
        // The types of Preact pair each kind of input with attributes of its own: too narrow for a field of any kind.
        {...(rest as object)}
      />
      <FieldNotes id={id} help={help} wrong={wrong} />
    </div>
  );
}

/** `unlabelled`: the heading above it has the same word; screen readers still hear it. */
export function TextArea({ label, help, wrong, onValue, unlabelled, ...rest }: TextProps & { rows?: number; unlabelled?: boolean }) {
  const id = useId();
  return (
    <div class="field">
      <label for={id} class={unlabelled ? "visually-hidden" : undefined}>
        {label}
      </label>
      <textarea
        id={id}
        class="textarea"
        spellcheck={false}
        aria-invalid={wrong ? "true" : undefined}
        aria-describedby={help || wrong ? `${id}-help` : undefined}
        onInput={(event) => onValue(event.currentTarget.value)}
        {...rest}
      />
      <FieldNotes id={id} help={help} wrong={wrong} />
    </div>
  );
}

export function SelectField<T extends string>(props: Common & { value: T; options: readonly (readonly [T, string])[]; onValue: (value: T) => void; disabled?: boolean }) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{props.label}</label>
      <select
        id={id}
        class="select"
        value={props.value}
        disabled={props.disabled}
        aria-describedby={props.help || props.wrong ? `${id}-help` : undefined}
        onChange={(event) => props.onValue(event.currentTarget.value as T)}
      >
        {props.options.map(([value, title]) => (
          <option key={value} value={value}>
            {title}
          </option>
        ))}
      </select>
      <FieldNotes id={id} help={props.help} wrong={props.wrong} />
    </div>
  );
}

export function CheckField(props: { label: ComponentChildren; checked: boolean; onValue: (value: boolean) => void; disabled?: boolean }) {
  return (
    <label class="check">
      <input type="checkbox" checked={props.checked} disabled={props.disabled} onChange={(event) => props.onValue(event.currentTarget.checked)} />
      <span>{props.label}</span>
    </label>
  );
}

/** A filter box: a label for screen readers, a placeholder for the others. */
export function FilterBox(props: { label: string; value: string; onValue: (value: string) => void; id?: string }) {
  return (
    <input
      id={props.id}
      class="input filter"
      type="search"
      aria-label={props.label}
      placeholder={props.label}
      value={props.value}
      onInput={(event) => props.onValue(event.currentTarget.value)}
    />
  );
}

function FieldNotes({ id, help, wrong }: { id: string; help?: ComponentChildren; wrong?: string }) {
  if (!help && !wrong) return null;
  return (
    <div id={`${id}-help`}>
      {wrong && <p class="wrong">{wrong}</p>}
      {help && <p class="help">{help}</p>}
    </div>
  );
}
