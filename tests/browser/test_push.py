"""Push in a page: a WebSocket with a ticket, and an EventSource that reconnects by itself."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser

from tests.rest.helpers import Client
from tests.serving import Served

PAGE = """async () => {
  const post = (path, body) => fetch("/api/v1/" + path, {
    method: "POST", body: JSON.stringify(body), headers: {"content-type": "application/json"}});
  const {ticket} = await (await post("stream/tickets", {})).json();
  const socket = new WebSocket(`ws://${location.host}/api/v1/stream?ticket=${ticket}`, ["openq.json"]);
  const frames = [];
  const closed = new Promise((resolve) => { socket.onclose = (event) => resolve(event.code); });
  const settled = new Promise((resolve) => {
    socket.onmessage = ({data}) => {
      const frame = JSON.parse(data);
      frames.push(frame.op);
      if (frame.op === "hello") {
        socket.send(JSON.stringify({op: "subscribe", sub: 1, queue: "page", attributes: {shop: "eu"}}));
        post("queues/page/messages", {payload: "no", attributes: {shop: "us"}}).then(() =>
          post("queues/page/messages", {payload: "κόσμε", attributes: {shop: "eu"}}));
      }
      if (frame.op === "deliver")
        socket.send(JSON.stringify({op: "ack", id: 1, receipts: frame.messages.map((m) => m.receipt_id)}));
      if (frame.op === "settled") resolve(frame.count);
    };
  });
  const count = await settled;
  socket.close(1000);

  const events = new EventSource("/api/v1/queues/page/events?from=oldest&bodies=1");
  const seen = [];
  await new Promise((resolve) => {
    for (const name of ["published", "delivered", "acked"])
      events.addEventListener(name, (event) => {
        seen.push([name, JSON.parse(event.data).message?.payload ?? null, event.lastEventId !== ""]);
        if (name === "acked") resolve();
      });
  });
  events.close();
  return {count, frames, code: await closed, extensions: socket.extensions, seen};
}"""


@pytest.mark.ui
def test_a_page_gets_messages_and_events(browser: Browser, served: Served) -> None:
    client = Client(served.url)
    path = client.queue("page")
    page = browser.new_page()
    page.goto(f"{served.url}/livez")

    found = page.evaluate(PAGE)

    page.close()
    assert (found["count"], found["code"], found["extensions"]) == (1, 1000, "")
    assert found["frames"] == ["hello", "deliver", "settled"]
    assert found["seen"] == [
        ["published", "no", True],
        ["published", "κόσμε", True],
        ["delivered", None, True],
        ["acked", None, True],
    ]
    assert client.get(path).value["stats"]["ready"] == 1
