/** The same action as a line for a shell: what "Copy as" offers. */
import type { Request } from "./client";

/**
 * Quotes a word for a shell. Words without control characters mean the same to every POSIX shell; the others, as
 * $'…', to bash, zsh and ksh. A shell without $'…' (dash) reads another text there. It must not find the end of the
 * quotes in it, so that no part of the text is ever a command: a quotation mark is \x27, never \'.
 */
export function quote(word: string): string {
  // Pasted as they are, control characters would be keys for the terminal: Ctrl-C, Escape, Enter.
  if (/[\u0000-\u001f\u007f]/.test(word)) {
    return `$'${word.replaceAll("\\", "\\\\").replace(/[\u0000-\u001f\u007f']/g, (each) => `\\x${each.charCodeAt(0).toString(16).padStart(2, "0")}`)}'`;
  }
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

/** Where `openq` looks by itself. */
const DEFAULT_ORIGINS = ["http://127.0.0.1:9324", "http://localhost:9324"];
/** Commands that read files: on the machine of the server, without its address. */
const LOCAL = ["user", "key", "token", "perm", "config show"];
let withToken = false;

/** Whether lines need credentials: the server has users. They name the variable, never a secret. */
export function setNeedsToken(needs: boolean): void {
  withToken = needs;
}

export function curlLine(request: Request, origin: string = location.origin): string {
  const words = ["curl"];
  if (withToken) words.push("-H", '"Authorization: Bearer $OPENQ_TOKEN"');
  if (request.method !== "GET" && !(request.method === "POST" && request.body !== undefined)) {
    words.push("-X", request.method);
  }
  words.push(quote(origin + request.path));
  if (request.body !== undefined) words.push("--json", quote(JSON.stringify(request.body)));
  return words.join(" ");
}

/** Options that say where a line goes and with which credentials; argparse takes their beginnings for them, too. */
const RISKY = ["--account", "--ca", "--data", "--store", "--timeout", "--token", "--token-file", "--url", "--user"];
const OWN = ["--to", "--account"]; // of commands

/**
 * Whether a word is somebody's name or text and would be read as an option: one that is called --url=https://other.example.
 * Options of commands alone are left: at worst they are a wrong usage.
 */
function isDisguised(word: string, next: string | undefined, origin: string): boolean {
  if (!word.startsWith("-") || word === "-") return false;
  const option = /^(--[a-z][a-z-]*)(=|$)/.exec(word)?.[1];
  if (option === undefined) return true;
  return !OWN.includes(option) && !(word === "--url" && next === origin) && RISKY.some((each) => each.startsWith(option));
}

/** Options and words, and apart from them those behind "--", which are never read as options. */
function disarmed(words: (string | Flag)[], origin: string): { kept: string[]; names: string[] } {
  const end = words.indexOf("--");
  const names = end < 0 ? [] : words.slice(end + 1).map(String);
  const kept: string[] = [];
  const moved: string[] = [];
  words.slice(0, end < 0 ? undefined : end).forEach((word, index) => {
    const before = kept.at(-1);
    const next = words[index + 1];
    if (typeof word === "object") kept.push(...wordsOf(word));
    else if (!isDisguised(word, typeof next === "object" ? undefined : next, origin)) kept.push(word);
    else if (before !== undefined && before === words[index - 1] && /^--[a-z][a-z-]*$/.test(before)) kept[kept.length - 1] = `${before}=${word}`;
    else moved.push(word);
  });
  return { kept, names: [...moved, ...names] };
}

/** An option of this page with somebody's value: it stays an option, and the value a value. */
export interface Flag {
  name: string;
  value: string;
}

export function flag(name: string, value: string | number): Flag {
  return { name, value: String(value) };
}

/** Joined where the value is empty, or would be read as an option of its own. */
function wordsOf({ name, value }: Flag): string[] {
  return value === "" || value.startsWith("-") ? [`${name}=${value}`] : [name, value];
}

/** `openq` with its words quoted, and the address of this server; empty, undefined and false words are left out. */
export function cliLine(...words: (string | number | false | undefined | null | Flag)[]): string {
  const given = words.flatMap((word) => (word === false || word === undefined || word === null || word === "" ? [] : [typeof word === "object" ? word : String(word)]));
  const origin = typeof location === "undefined" ? DEFAULT_ORIGINS[0]! : location.origin;
  const isLocal = LOCAL.some((name) => name === given[0] || name === `${given[0]} ${given[1]}`);
  const { kept, names } = disarmed(given, origin);
  const isAddressed = kept.some((word, index) => word === "--url" && kept[index + 1] === origin);
  if (!DEFAULT_ORIGINS.includes(origin) && !isLocal && !isAddressed) kept.push("--url", origin);
  return ["openq", ...kept, ...(names.length > 0 ? ["--", ...names] : [])].map(quote).join(" ");
}

/** The same request for several messages: a loop, so that it stays one line. */
export function curlLines(ids: string[], requestFor: (id: string) => Request): string {
  const [first = ""] = ids;
  if (ids.length <= 1) return curlLine(requestFor(first));
  const slot = "OPENQ-MESSAGE-ID";
  const line = curlLine(requestFor(slot));
  // Inside of quotes the variable would stay as it is.
  const variable = line.includes(`'${location.origin}`) ? `'"$id"'` : `"$id"`;
  return `for id in ${ids.map((id) => quote(encodeURIComponent(id))).join(" ")}; do ${line.replace(slot, variable)}; done`;
}

/** A line whose last word is a body: `-` would be read from stdin, so it comes from there. */
export function withBody(line: string, body: string): string {
  return body === "-" ? `printf %s - | ${line}` : line;
}

/** A line that runs `times` times. */
export function repeated(line: string, times: number): string {
  return times > 1 ? `for i in $(seq ${times}); do ${line}; done` : line;
}

export function pythonLines(origin: string): string {
  return `from openq import OpenQ\n\nqueue = OpenQ("hello", url="${origin}")\nqueue.publish("hi")`;
}

export function boto3Lines(origin: string, needsKey: boolean): string {
  const [key, secret] = needsKey ? ["ACCESS_KEY_ID", "SECRET_ACCESS_KEY"] : ["any", "any"];
  return `import boto3

sqs = boto3.client(
    "sqs",
    endpoint_url="${origin}",
    region_name="us-east-1",
    aws_access_key_id="${key}",
    aws_secret_access_key="${secret}",
)
url = sqs.create_queue(QueueName="hello")["QueueUrl"]
sqs.send_message(QueueUrl=url, MessageBody="hi")`;
}

/** `address` is the server's own one; a browser that came by another name reaches AMQP by that name, too. */
export function pikaLines(address: string, host: string, needsLogin: boolean): string {
  const port = /:(\d+)\/?$/.exec(address)?.[1] ?? "5672";
  const login = needsLogin ? "NAME:PASSWORD" : "guest:guest";
  return `import pika

url = "amqp://${login}@${host}:${port}/"
client = pika.BlockingConnection(pika.URLParameters(url))
channel = client.channel()
channel.queue_declare("hello", durable=True)
channel.basic_publish("", "hello", b"hi")
client.close()`;
}
