"""A message that is published by any protocol is an event, for any client that reads the stream."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from typing import Any

import pytest

from tests.events.sse import EventStream
from tests.protocol_clients import AMQP, LIBRARY, PROTOCOLS, REST, SQS, Document, Protocols, protocols

__all__ = ["protocols"]  # a fixture

SENT: dict[str, Document] = {
    LIBRARY: {"body": "héllo", "attributes": {"kind": "a"}},
    REST: {"payload": "héllo", "attributes": {"kind": "a"}},
    SQS: {
        "MessageBody": "héllo",
        "MessageAttributes": {"kind": {"DataType": "String", "StringValue": "a"}},
    },
    AMQP: {"body": "héllo".encode(), "headers": {"kind": "a"}, "content_type": "text/plain"},
}


@pytest.mark.parametrize("way", PROTOCOLS)
def test_a_message_of_any_protocol_is_an_event(protocols: Protocols, way: str) -> None:
    queue = f"events-{way}"
    protocols.rest.make(queue)
    with EventStream(protocols.server.port, f"queues/{queue}/events?bodies=1") as stream:
        stream.started()
        protocols.client(way, "events").send(queue, SENT[way])
        protocols.client(REST, "events").take(queue)
        published, delivered, acked = stream.take(3)
    assert [each.event for each in (published, delivered, acked)] == ["published", "delivered", "acked"]
    assert published.data["message"]["payload"] == "héllo"
    assert published.data["message"]["attributes"]["kind"] == "a"
    assert {each.data["message_id"] for each in (published, delivered, acked)} == {
        published.data["message_id"]
    }


NODE = """
const http = require("http");
let last = "", count = 0, text = "";
function connect() {
  const headers = { accept: "text/event-stream" };
  if (last) headers["last-event-id"] = last;
  http.get(process.argv[1], { headers }, (response) => {
    response.setEncoding("utf8");
    response.on("data", (data) => {
      text += data;
      let end;
      while ((end = text.indexOf("\\n\\n")) >= 0) {
        const block = text.slice(0, end); text = text.slice(end + 2);
        const pairs = block.split("\\n").map((line) => line.split(/: ?(.*)/s).slice(0, 2));
        const fields = Object.fromEntries(pairs);
        if (fields.id) last = fields.id;
        if (!fields.data) continue;
        console.log(fields.data);
        if (++count === 3) { text = ""; response.destroy(); connect(); return; }
        if (count === 5) process.exit(0);
      }
    });
  });
}
connect();
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_node_reads_and_resumes(protocols: Protocols) -> None:
    protocols.rest.make("node")
    for number in range(5):
        protocols.client(REST, "events").send("node", {"payload": number})
    url = f"{protocols.server.url}/api/v1/queues/node/events?from=oldest&events=published&bodies=1"
    node = shutil.which("node")
    assert node is not None
    done = subprocess.run([node, "-e", NODE, "--", url], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line)["message"]["payload"] for line in done.stdout.splitlines()]
    assert found == list(range(5))


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_follows(protocols: Protocols) -> None:
    protocols.rest.make("curl")
    protocols.client(REST, "events").send("curl", {"payload": "before"})
    url = f"{protocols.server.url}/api/v1/queues/curl/events?from=oldest&events=published&bodies=1"
    process = subprocess.Popen(
        ["curl", "-sN", url], stdout=subprocess.PIPE, text=True, env={**os.environ, "no_proxy": "*"}
    )
    assert process.stdout is not None

    def payload() -> Any:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("data: "):
                return json.loads(line[6:])["message"]["payload"]
        return None

    assert payload() == "before"
    protocols.client(REST, "events").send("curl", {"payload": "after"})
    assert payload() == "after"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
