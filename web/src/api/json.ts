/**
 * JSON with whole numbers as they were written. A number of JavaScript holds 53 bits of one: the ids of many programs
 * have 64, and would be shown, and sent again, as another number.
 */
interface RawNumber {
  readonly rawJSON: string;
}

interface Source {
  source?: string;
}

/** What browsers have since 2023 to 2025; older ones show such a number rounded. */
const EXACT = JSON as typeof JSON & { rawJSON?: (text: string) => RawNumber; isRawJSON?: (value: unknown) => value is RawNumber };
/** Without so many digits in a row there is no such number, and nothing to look for. */
const LONG = /\d{16}/;
const WHOLE = /^-?\d+$/;

export function parseJson(text: string): unknown {
  if (!EXACT.rawJSON || !LONG.test(text)) return JSON.parse(text);
  const revive = (_key: string, value: unknown, context?: Source): unknown => {
    if (typeof value !== "number" || Number.isSafeInteger(value)) return value;
    const written = context?.source;
    return written && WHOLE.test(written) && String(value) !== written ? EXACT.rawJSON!(written) : value;
  };
  return JSON.parse(text, revive);
}

/** The digits of a whole number that `parseJson` kept; undefined for every other value. */
export function digitsOf(value: unknown): string | undefined {
  return EXACT.isRawJSON?.(value) ? value.rawJSON : undefined;
}

/** A value for a line of text: a text as it is, others as JSON. */
export function plainText(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}
