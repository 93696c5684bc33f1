/** Numbers, times and sizes as people read them. */

const GROUPED = new Intl.NumberFormat();
const SHORT = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });

/** 12,345; from a million on 1.2M. */
export function count(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  return Math.abs(value) >= 1_000_000 ? SHORT.format(value) : GROUPED.format(value);
}

/** A rate per second: 0, 0.4, 12, 1,240. */
export function rate(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value > 0 && value < 10) return (Math.round(value * 10) / 10).toString();
  return GROUPED.format(Math.round(value));
}

/** Seconds as one unit, or two where one is too rough: 350 ms, 12 s, 4 min, 2 h 5 min, 3 d. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  const s = Math.abs(seconds);
  if (s === 0) return "0 s";
  if (s < 0.001) return `${Math.max(1, Math.round(s * 1e6))} µs`;
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 10) return `${Math.round(s * 10) / 10} s`;
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172_800) {
    const minutes = Math.round(s / 60);
    return minutes % 60 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${minutes / 60} h`;
  }
  return `${Math.round(s / 86_400)} d`;
}

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let index = 0;
  let size = value;
  while (size >= 1023.5 && index < units.length - 1) {
    size /= 1024;
    index += 1;
  }
  return `${index === 0 || size >= 100 ? Math.round(size) : Math.round(size * 10) / 10} ${units[index]}`;
}

/** Time of day with milliseconds for a timeline, with the date if it is not today's. */
export function clock(time: string | number | Date, now: Date = new Date()): string {
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) return String(time);
  const text = date.toLocaleTimeString(undefined, { hour12: false });
  const day = date.toDateString() === now.toDateString() ? "" : `${date.toLocaleDateString()} `;
  return `${day}${text}`;
}

export function clockExact(time: string | number | Date, now: Date = new Date()): string {
  const date = new Date(time);
  const millis = String(date.getMilliseconds()).padStart(3, "0");
  return `${clock(date, now)}.${millis}`;
}

export function utc(time: string | number | Date): string {
  const date = new Date(time);
  return Number.isNaN(date.getTime()) ? String(time) : `${date.toISOString().replace("T", " ").replace("Z", "")} UTC`;
}

/** "3 min ago", "in 5 s". */
export function relative(time: string | number | Date, now: number = Date.now()): string {
  const seconds = (now - new Date(time).getTime()) / 1000;
  if (Number.isNaN(seconds)) return String(time);
  if (Math.abs(seconds) < 1) return "now";
  return seconds > 0 ? `${duration(seconds)} ago` : `in ${duration(-seconds)}`;
}

export function plural(value: number, one: string, many: string = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** Cuts a long text for one line, without control characters and line breaks. */
export function oneLine(text: string, limit = 200): string {
  const cut = text.length > limit ? `${text.slice(0, limit)}…` : text;
  // eslint-disable-next-line no-control-regex
  return upright(cut.replace(/[\u0000-\u001f\u007f]+/g, " "));
}

/** Characters that turn the direction of what follows are shown as �: they could make a name look like another. */
export function upright(text: string): string {
  return text.replace(/[\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
}

/** Seconds since the epoch as the value of an input for local time, and back. */
export function localInput(seconds: number): string {
  const date = new Date(seconds * 1000);
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

export function secondsOfInput(text: string): number | undefined {
  const seconds = Math.floor(new Date(text).getTime() / 1000);
  return Number.isNaN(seconds) ? undefined : seconds;
}

/** Lines of RFC 4180. A text that a spreadsheet would take for a formula gets an apostrophe before it. */
export function csvOf(rows: unknown[][]): string {
  const cell = (value: unknown): string => {
    if (value === null || value === undefined) return "";
    let text = typeof value === "object" ? JSON.stringify(value) : String(value);
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}
