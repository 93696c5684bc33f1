/** How exchanges route, as the broker does it: direct, fanout, topic, headers, bindings to exchanges, alternates. */
import type { BindingView, ExchangeView } from "./api/schema";

export interface Route {
  queue: string;
  /** The exchanges on the way. */
  through: string[];
}

export function routes(exchanges: ExchangeView[], bindings: BindingView[], exchange: string, key: string, headers: Record<string, unknown>): Route[] {
  const found = new Map<string, Route>();
  const seen = new Set<string>();
  const kinds = new Map(exchanges.map((each) => [each.name, each]));

  function follow(name: string, through: string[]): boolean {
    if (seen.has(name)) return true;
    seen.add(name);
    const path = [...through, name || "(default)"];
    if (name === "") {
      if (key) found.set(key, { queue: key, through: path });
      return key !== "";
    }
    const view = kinds.get(name);
    if (!view) return false;
    let matched = false;
    for (const binding of bindings) {
      if (binding.source !== name || !matches(view.kind, binding, key, headers)) continue;
      matched = true;
      if (binding.to_exchange) follow(binding.destination, path);
      else if (!found.has(binding.destination)) found.set(binding.destination, { queue: binding.destination, through: path });
    }
    if (!matched && view.alternate) return follow(view.alternate, path);
    return matched;
  }

  follow(exchange, []);
  return [...found.values()];
}

export function matches(kind: string, binding: Pick<BindingView, "key" | "arguments">, key: string, headers: Record<string, unknown>): boolean {
  if (kind === "fanout") return true;
  if (kind === "topic") return topicMatches(binding.key.split("."), key === "" ? [] : key.split("."));
  if (kind === "headers") return headersMatch(binding.arguments, headers);
  return binding.key === key;
}

/** `*` is one word, `#` any number of words. */
export function topicMatches(pattern: string[], words: string[]): boolean {
  // Row by row over the pattern: linear in both, unlike trying every length for each #.
  let reach = [true, ...words.map(() => false)];
  for (const part of pattern) {
    const next = reach.map(() => false);
    for (let index = 0; index <= words.length; index += 1) {
      if (part === "#") next[index] = reach[index]! || (index > 0 && next[index - 1]!);
      else if (index > 0 && reach[index - 1]) next[index] = part === "*" || part === words[index - 1];
    }
    reach = next;
  }
  return pattern.length === 1 && pattern[0] === "" ? words.length === 0 : reach[words.length]!;
}

function headersMatch(wanted: Record<string, unknown>, headers: Record<string, unknown>): boolean {
  const any = String(wanted["x-match"] ?? "all").startsWith("any");
  const names = Object.keys(wanted).filter((name) => !name.startsWith("x-"));
  const hits = names.filter((name) => name in headers && (wanted[name] === null || String(headers[name]) === String(wanted[name])));
  return any ? hits.length > 0 : hits.length === names.length;
}
