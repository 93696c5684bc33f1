import { expect, it } from "vitest";

import { cliLine, curlLine, quote } from "./lines";

it("quotes what a shell would read otherwise", () => {
  expect(quote("orders")).toBe("orders");
  expect(quote("a b")).toBe("'a b'");
  expect(quote("it's $HOME")).toBe(`'it'\\''s $HOME'`);
});

it("makes a curl line of a request", () => {
  const request = { method: "POST", path: "/api/v1/queues/a/messages", body: { payload: "x y" } };
  expect(curlLine(request, "http://h:1")).toBe(`curl http://h:1/api/v1/queues/a/messages --json '{"payload":"x y"}'`);
  expect(curlLine({ method: "DELETE", path: "/api/v1/queues/a" }, "http://h:1")).toBe("curl -X DELETE http://h:1/api/v1/queues/a");
});

it("leaves out what is not given", () => {
  expect(cliLine("dlq", "redrive", "q", false, undefined, "--rate", 5)).toBe("openq dlq redrive q --rate 5");
});
