"""What any protocol publishes, a webhook posts: the rows of tests/test_protocols.py in the mode json."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from openq.webhooks.formats import MessageDocument
from tests.http_endpoint import Endpoint
from tests.protocol_clients import REST, Protocols, opened, require
from tests.real_clients.boto import fresh
from tests.test_protocols import ROWS
from tests.waiting import until

FIELDS = set(MessageDocument.__struct_fields__)


@pytest.fixture(scope="module")
def protocols(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Protocols]:
    with opened(tmp_path_factory.mktemp("protocols") / "data", "--webhook-allow", "127.0.0.1") as found:
        yield found


@pytest.mark.parametrize("row", [name for name, row in ROWS.items() if REST in row.seen])
def test_a_message_of_any_protocol_is_posted_as_rest_shows_it(
    protocols: Protocols, endpoint: Endpoint, row: str
) -> None:
    wanted = {key: value for key, value in ROWS[row].seen[REST].items() if key in FIELDS}
    for sender, message in ROWS[row].sent.items():
        endpoint.seen.clear()
        queue = protocols.rest.make(fresh(".fifo" if ROWS[row].queue else ""), **ROWS[row].queue)
        body = {"url": endpoint.url, "queue": queue, "mode": "json"}
        protocols.rest.call("PUT", f"/webhooks/{queue}", body)
        protocols.client(sender, row).send(queue, message)
        until(lambda: endpoint.seen)
        [posted] = endpoint.bodies
        require(wanted, json.loads(posted), f"{row} by {sender}")
        protocols.rest.call("DELETE", f"/webhooks/{queue}")
