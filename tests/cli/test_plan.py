"""`openq doctor --plan`: what is measured is measured, and what follows from it is right."""

from __future__ import annotations

import errno
import json
import os
from contextlib import closing
from pathlib import Path

import pytest

from openq.cli.plan import ENGINE_US, QUEUE, Load, Measured, _Publishers, judge
from openq.errors import JournalFailed
from openq.journal.disk import DiskIo
from openq.journal.file_journal import Journal
from openq.local.broker import LocalBroker
from openq.model import QueueSettings
from tests.cli.helpers import run_in_process

GIB = 1 << 30
QUICK = Measured(
    wait_p50_ms=1.0,
    wait_p99_ms=5.0,
    durable_per_s=20_000.0,
    alone_per_s=900.0,
    bytes_each=1_000.0,
    engine_us=ENGINE_US,
    free_bytes=1_000 * GIB,
)


def verdicts(load: Load, measured: Measured = QUICK, history_bytes: int = GIB) -> dict[str, tuple[str, str]]:
    return {what: (verdict, text) for what, verdict, text in judge(load, measured, history_bytes)}


def changed(**values: float) -> Measured:
    return Measured(**{name: values.get(name, getattr(QUICK, name)) for name in QUICK.__slots__})


def test_a_small_load_fits() -> None:
    found = verdicts(Load(100, 1024, 3600))

    assert {verdict for verdict, _ in found.values()} == {"ok"}
    assert "343.3 MiB for 1h of messages (1,000 bytes each" in found["disk"][1]
    assert "97.7 KiB/s are written" in found["writes"][1]


@pytest.mark.parametrize(("per_s", "verdict"), [(13_000, "ok"), (15_000, "warning"), (21_000, "failed")])
def test_a_rate_is_compared_with_the_disk(per_s: float, verdict: str) -> None:
    found = verdicts(Load(per_s, 1024, 60))["rate"]

    assert found[0] == verdict
    assert f"{per_s / 20_000:.0%} of that is wanted" in found[1]


def test_retention_is_compared_with_free_space_and_with_the_limit_of_the_history() -> None:
    fits = verdicts(Load(1_000, 1024, 86_400))
    too_long = verdicts(Load(1_000, 1024, 30 * 86_400))
    small = verdicts(Load(10, 1024, 86_400))

    assert fits["disk"][0] == "ok"
    assert fits["history"][0] == "warning"
    assert "set history_bytes = 81GiB, and history = 1d" in fits["history"][1]
    assert too_long["disk"][0] == "failed"
    assert "enough for 9.94d" in too_long["disk"][1]
    assert "history" not in too_long
    assert "history" not in small


def test_a_slow_machine_needs_more_of_it() -> None:
    quick = [text for what, _, text in judge(Load(2_000, 100, 60), QUICK, GIB) if what == "cpu"]
    slow = [
        text
        for what, _, text in judge(Load(2_000, 100, 60), changed(engine_us=4 * ENGINE_US), GIB)
        if what == "cpu"
    ]

    shares = [[float(text.split(": ")[1].split()[0]) for text in texts] for texts in (quick, slow)]
    assert shares[1] == pytest.approx([4 * share for share in shares[0]], abs=0.03)
    assert "servers on Redis" in slow[-1]


def test_it_measures_this_disk_and_leaves_nothing_behind(tmp_path: Path) -> None:
    data = tmp_path / "data"
    done = run_in_process(
        "doctor", "--plan", "0.001/s", "--size", "2KiB", "--retention", "1m", "--data", data, "--json"
    )
    found = json.loads(done.out)

    assert done.code == 0, done.err
    assert found["load"] == {"per_s": 0.001, "size": 2048, "retention_s": 60.0}
    measured = found["measured"]
    assert measured["durable_per_s"] > 0
    assert measured["alone_per_s"] > 0
    assert 0 < measured["wait_p50_ms"] <= measured["wait_p99_ms"]
    assert 2048 < measured["bytes_each"] < 2 * 2048
    assert measured["engine_us"] > 0
    assert [each["check"] for each in found["checks"]][:3] == ["rate", "latency", "disk"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rate", ["fast", "0/s", "5/fortnight", "-1", "1e99/s"])
def test_a_rate_that_is_none_is_refused(rate: str) -> None:
    done = run_in_process("doctor", "--plan", rate)

    assert done.code == 2
    assert "must be a rate, such as 5000/s" in done.err


def test_a_disk_that_breaks_during_the_measurement_ends_it(tmp_path: Path) -> None:
    class Broken(DiskIo):
        syncs_left = 1 << 30

        def fdatasync(self, fd: int) -> None:
            self.syncs_left -= 1
            if self.syncs_left < 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().fdatasync(fd)

    disk = Broken()
    with closing(LocalBroker(journal=Journal(tmp_path, io=disk))) as broker:
        broker.declare(QUEUE, QueueSettings())
        broker.sync()
        disk.syncs_left = 3

        with pytest.raises(JournalFailed):
            _Publishers(broker, b"x", 4).run(600, 1 << 30)
