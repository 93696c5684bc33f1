import { afterEach, expect, it, vi } from "vitest";

import { cliLine, curlLine, quote, setNeedsToken } from "./lines";

it("quotes what a shell would read otherwise", () => {
  expect(quote("orders")).toBe("orders");
  expect(quote("a b")).toBe("'a b'");
  expect(quote("it's $HOME")).toBe(`'it'\\''s $HOME'`);
  expect(quote("a\n\u0003it's \\")).toBe("$'a\\x0a\\x03it\\'s \\\\'");
});

it("makes a curl line of a request", () => {
  const request = { method: "POST", path: "/api/v1/queues/a/messages", body: { payload: "x y" } };
  expect(curlLine(request, "http://h:1")).toBe(`curl http://h:1/api/v1/queues/a/messages --json '{"payload":"x y"}'`);
  expect(curlLine({ method: "DELETE", path: "/api/v1/queues/a" }, "http://h:1")).toBe("curl -X DELETE http://h:1/api/v1/queues/a");
});

it("leaves out what is not given", () => {
  expect(cliLine("dlq", "redrive", "q", false, undefined, "--rate", 5)).toBe("openq dlq redrive q --rate 5");
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
