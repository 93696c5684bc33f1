"""Servers over one Redis share the logins of the dashboard."""

from __future__ import annotations

import pytest

from openq.auth.documents import SharedDocument
from openq.auth.store import UserStore
from openq.redis.broker import RedisBroker
from tests.redis.servers import Server, versions
from tests.rest.helpers import Client
from tests.serving import Served, free_port
from tests.waiting import until

PASSWORD = "canary-shared-password"
SAME = {"sec-fetch-site": "same-origin"}


@pytest.mark.parametrize("redis_server", versions()[:1], indirect=True, ids=str)
def test_a_session_of_one_server_is_one_of_all(redis_server: Server) -> None:
    broker = RedisBroker(redis_server.url, profile="fast")
    assert broker.cluster is not None
    store = UserStore(place=SharedDocument(broker.cluster, "users", "users"))
    store.add_user("ann", role="admin", password=PASSWORD)
    flags = ["--store", redis_server.url, "--profile", "fast"]
    servers = [Served(flags, free_port()) for _ in range(2)]
    try:
        first, second = (Client(each.wait().url) for each in servers)
        answer = first.post("/session", {"user": "ann", "password": PASSWORD}, **SAME)
        assert answer.status == 201
        cookie = {"cookie": answer.headers["set-cookie"].partition(";")[0], **SAME}

        until(lambda: second.get("/session", **cookie).value["user"] == "ann", "the other server knows it")
        assert second.delete("/session", **cookie).value == {"ended": 1}
        until(lambda: first.get("/queues", **cookie).status == 401, "the first server forgets it")
        servers[0].stop()
        servers[0] = Served(flags, free_port())
        again = Client(servers[0].wait().url)
        answer = second.post("/session", {"user": "ann", "password": PASSWORD}, **SAME)
        cookie = {"cookie": answer.headers["set-cookie"].partition(";")[0], **SAME}
        until(lambda: again.get("/queues", **cookie).status == 200, "a new server knows it")
        store.set_password("ann", "another")
        until(lambda: again.get("/queues", **cookie).status == 401, "a new password ends it")
    finally:
        for each in servers:
            each.stop()
        broker.close()
