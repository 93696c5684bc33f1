"""What a fault of Redis may lose is said by the server, without looking at its settings by hand."""

from __future__ import annotations

from pathlib import Path

from tests.redis.servers import single
from tests.rest.helpers import Client
from tests.serving import Served, free_port, served


def test_the_servers_of_a_redis_say_what_its_faults_may_lose() -> None:
    with single() as redis:
        running = Served(["--store", redis.url, "--profile", "fast"], free_port())
        try:
            found = Client(running.wait().url).get("/servers").value
        finally:
            running.stop()

    faults = {each["fault"]: each for each in found["loss_window"]}
    assert set(faults) == {"process_killed", "power_loss", "failover", "network_split", "disk_lost"}
    assert faults["disk_lost"]["loses"] == "without_bound"  # there is no replica
    assert faults["disk_lost"]["seconds"] is None
    assert faults["failover"]["loses"] == "nothing"
    assert all(each["when"] and each["text"] for each in faults.values())


def test_a_server_without_redis_has_no_such_window(tmp_path: Path) -> None:
    with served(tmp_path / "data") as running:
        assert Client(running.url).get("/servers").value["loss_window"] == []
