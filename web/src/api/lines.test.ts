// @ts-expect-error The page has no types of Node.js; only this test runs shells.
import { spawnSync } from "node:child_process";

import { afterEach, expect, it, vi } from "vitest";

import { boto3Lines, cliLine, curlLine, curlLines, flag, pikaLines, quote, repeated, setNeedsToken } from "./lines";

it("quotes what a shell would read otherwise", () => {
  expect(quote("orders")).toBe("orders");
  expect(quote("a b")).toBe("'a b'");
  expect(quote("it's $HOME")).toBe(`'it'\\''s $HOME'`);
  expect(quote("a\n\u0003it's \\")).toBe("$'a\\x0a\\x03it\\x27s \\\\'");
});

const FOREIGN = ["a'; echo PWNED #\n", "\n'; echo PWNED; '", "\\'; echo PWNED #\r", "$(echo PWNED)\t`echo PWNED`", "\u001b'\\\\'; echo PWNED #", "'; echo PWNED; '"];

it.each(["sh", "dash", "bash"])("lets no part of a text be a command in %s", (shell) => {
  if (spawnSync(shell, ["-c", "exit 0"]).status !== 0) return expect(shell).not.toBe("sh"); // not on this machine
  for (const text of FOREIGN) {
    const found = spawnSync(shell, ["-c", `printf '<%s>' ${quote(text)}`], { encoding: "utf8" });
    // One word of one command: whatever else ran would have written behind it, or would have failed.
    expect([found.status, found.stderr]).toEqual([0, ""]);
    expect(found.stdout.match(/<.*>$/s)?.[0]).toBe(found.stdout);
    expect(found.stdout.split("<").length).toBe(2);
    if (shell === "bash") expect(found.stdout).toBe(`<${text}>`);
  }
});

it("makes a curl line of a request", () => {
  const request = { method: "POST", path: "/api/v1/queues/a/messages", body: { payload: "x y" } };
  expect(curlLine(request, "http://h:1")).toBe(`curl http://h:1/api/v1/queues/a/messages --json '{"payload":"x y"}'`);
  expect(curlLine({ method: "DELETE", path: "/api/v1/queues/a" }, "http://h:1")).toBe("curl -X DELETE http://h:1/api/v1/queues/a");
});

it("leaves out what is not given", () => {
  expect(cliLine("dlq", "redrive", "q", false, undefined, "--rate", 5)).toBe("openq dlq redrive q --rate 5");
});

it("reads no name as an option", () => {
  const evil = "--url=https://evil.example";
  expect(cliLine("exchange", "unbind", "shop", "q", evil)).toBe(`openq exchange unbind shop q -- ${evil}`);
  expect(cliLine("exchange", "unbind", "shop", "--url", "https://evil.example")).toBe("openq exchange unbind shop https://evil.example -- --url");
  expect(cliLine("alert", "silence", "backlog", "--subject", evil)).toBe(`openq alert silence backlog --subject=${evil}`);
  expect(cliLine("queue", "purge", "--tok", "-x")).toBe("openq queue purge -- --tok -x");
  expect(cliLine("send", "q", "--delay", 5, "--", "--yes")).toBe("openq send q --delay 5 -- --yes");
  vi.stubGlobal("location", { origin: "https://queues.example" });
  expect(cliLine("queue", "purge", evil)).toBe(`openq queue purge --url https://queues.example -- ${evil}`);
  vi.unstubAllGlobals();
  expect(cliLine("dlq", "redrive", "q", "--to", "other", "--rate", 5)).toBe("openq dlq redrive q --to other --rate 5");
});

afterEach(() => {
  vi.unstubAllGlobals();
  setNeedsToken(false);
});

it("names the server where openq would not find it, and never a secret", () => {
  vi.stubGlobal("location", { origin: "https://queues.example" });
  expect(cliLine("queue", "purge", "q")).toBe("openq queue purge q --url https://queues.example");
  expect(cliLine("perm", "test", "bob", "send", "q")).toBe("openq perm test bob send q");
  setNeedsToken(true);
  expect(curlLine({ method: "GET", path: "/api/v1/tasks" })).toBe('curl -H "Authorization: Bearer $OPENQ_TOKEN" https://queues.example/api/v1/tasks');
});

it("puts the server before the words that are text", () => {
  vi.stubGlobal("location", { origin: "http://h:1" });
  expect(cliLine("send", "q", "--", "-5")).toBe("openq send q --url http://h:1 -- -5");
});

it("makes one line of a request for several messages", () => {
  vi.stubGlobal("location", { origin: "http://h:1" });
  const cancel = (queue: string) => (id: string) => ({ method: "DELETE", path: `/api/v1/queues/${queue}/messages/${id}` });
  expect(curlLines(["a"], cancel("q"))).toBe("curl -X DELETE http://h:1/api/v1/queues/q/messages/a");
  expect(curlLines(["a", "b"], cancel("q"))).toBe('for id in a b; do curl -X DELETE http://h:1/api/v1/queues/q/messages/"$id"; done');
  expect(curlLines(["a", "b"], cancel("it(s)"))).toBe(`for id in a b; do curl -X DELETE 'http://h:1/api/v1/queues/it(s)/messages/'"$id"''; done`);
  expect([repeated("x", 1), repeated("x", 3)]).toEqual(["x", "for i in $(seq 3); do x; done"]);
});

it("names AMQP as the browser reaches it, and a login where one is needed", () => {
  expect(pikaLines("amqp://0.0.0.0:5673", "queues.example", false)).toContain('"amqp://guest:guest@queues.example:5673/"');
  expect(pikaLines("", "h", true)).toContain('"amqp://NAME:PASSWORD@h:5672/"');
  expect(boto3Lines("http://h:1", true)).toContain('aws_access_key_id="ACCESS_KEY_ID"');
});

it("keeps an option of the page an option, whatever its value is", () => {
  expect(cliLine("dlq", "discard", "q", flag("--reason-group", ""))).toBe("openq dlq discard q --reason-group=");
  expect(cliLine("dlq", "discard", "q", flag("--text", "--url=http://h"), flag("--reason", "a b"))).toBe("openq dlq discard q --text=--url=http://h --reason 'a b'");
});
