"""The damage register: what cannot be read any more is named, counted and remembered."""

import logging
from pathlib import Path

import pytest

from openq.broker.damage import BLOCK, FOUND, LOST, MAX_LISTED, SET_ASIDE, DamageRegister
from openq.broker.interface import Health
from openq.broker.state_file import StateFile
from openq.journal.file_journal import Journal
from openq.journal.index import index_path
from openq.local.broker import LocalBroker
from openq.metrics import render
from openq.model import Draft, QueueSettings
from tests.waiting import until


def test_a_report_is_logged_once_and_degrades_the_health(caplog: pytest.LogCaptureFixture) -> None:
    register = DamageRegister()
    place = {"queue": "jobs", "message_id": "m1", "file": "/data/journal/3.seg", "offset": 4096}

    with caplog.at_level(logging.ERROR, "openq"):
        assert register.report(SET_ASIDE, "the checksum does not match", 5, **place)  # type: ignore[arg-type]
        assert not register.report(SET_ASIDE, "the checksum does not match", 9, **place)  # type: ignore[arg-type]

    assert caplog.text.count("m1") == 1
    for part in ("jobs", "/data/journal/3.seg", "4096", "the checksum does not match"):
        assert part in caplog.text
    assert register.reasons() == ("1 record set aside",)
    assert register.set_aside() == {"jobs": 1}
    assert Health(True, "journal", degraded=register.reasons()).status == "degraded"


def test_the_register_is_the_same_after_a_restart_and_after_it_was_cleared(tmp_path: Path) -> None:
    register = DamageRegister(StateFile(str(tmp_path), "damage.json"))
    register.report(LOST, "segment 1 is missing", 5, file="/data/journal/1.seg", count=506)
    register.report(FOUND, "no record begins here", 6, file="/data/journal/2.seg", offset=64)

    again = DamageRegister(StateFile(str(tmp_path), "damage.json"))

    assert again.listed() == register.listed()
    assert again.reasons() == ("506 records lost", "1 record found damaged")
    assert b'openq_damaged_records_total{kind="lost"} 506' in render(again.families())
    assert b"openq_degraded 1" in render(again.families())

    assert again.clear() == 2
    cleared = DamageRegister(StateFile(str(tmp_path), "damage.json"))
    assert cleared.listed() == []
    assert cleared.reasons() == ()
    assert b'openq_damaged_records_total{kind="lost"} 506' in render(cleared.families())
    assert b"openq_degraded 0" in render(cleared.families())


def test_blocks_are_not_called_records(tmp_path: Path) -> None:
    register = DamageRegister(StateFile(str(tmp_path), "damage.json"))
    register.report(LOST, "unreadable blocks", 5, file="/data/journal/1.seg", count=14, unit=BLOCK)
    assert str(register.listed()[0]).startswith("14 blocks lost: ")
    register.report(LOST, "segment 2 is missing", 5, file="/data/journal/2.seg", count=1)

    again = DamageRegister(StateFile(str(tmp_path), "damage.json"))

    assert again.reasons() == register.reasons() == ("1 record lost", "14 blocks lost")


def test_a_file_that_says_nonsense_is_kept_and_the_register_begins_anew(tmp_path: Path) -> None:
    file = StateFile(str(tmp_path), "damage.json")
    file.write({"listed": [{"kind": "unheard of"}], "totals": {}, "open": {}})

    register = DamageRegister(file)

    assert register.listed() == []
    register.report(FOUND, "x", 1)
    assert Path(file.unreadable_path).exists()


def test_more_than_can_be_listed_is_still_counted() -> None:
    register = DamageRegister()
    logging.disable(logging.ERROR)
    try:
        for offset in range(MAX_LISTED + 5):
            register.report(FOUND, "x", 1, file="1.seg", offset=offset, save=False)
    finally:
        logging.disable(logging.NOTSET)

    assert len(register.listed()) == MAX_LISTED
    assert register.reasons() == (f"{MAX_LISTED + 5} records found damaged",)


def test_a_broker_opens_with_what_its_directory_remembers(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path)
    broker.inspect.damage.report(LOST, "segment 1 is missing", 5, count=3)
    broker.close()

    again = LocalBroker(tmp_path)

    assert again.health() == Health(True, "journal", False, ("3 records lost",))
    again.close()


def small_broker(path: Path) -> LocalBroker:
    return LocalBroker(journal=Journal(path, segment_bytes=4096, first_segment_bytes=4096))


def filled(path: Path) -> None:
    """Several full segments, each with its index, and a snapshot."""
    broker = small_broker(path)
    broker.declare("jobs", QueueSettings())
    for _ in range(60):
        broker.publish("jobs", Draft(b"x" * 200))
    broker.sync()
    journal = broker.journal
    assert journal is not None
    sealed = [each for each in journal.segments() if each.sealed]
    assert len(sealed) > 2
    until(lambda: all(Path(index_path(each.path)).exists() for each in sealed))
    broker.close()


@pytest.mark.parametrize("what", ["index", "snapshot"])
def test_what_is_found_damaged_in_the_background_degrades_the_health(tmp_path: Path, what: str) -> None:
    """Both are made anew; a disk that changes files needs an operator all the same."""
    filled(tmp_path)
    if what == "index":
        file = sorted((tmp_path / "journal").glob("*.idx"))[1]
    else:
        file = max((tmp_path / "snapshots").glob("*.snap"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)

    broker = small_broker(tmp_path)
    try:
        until(lambda: broker.inspect.damage.listed())
        [found] = broker.inspect.damage.listed()
        assert (found.kind, found.file) == (FOUND, str(file))
        assert broker.health().status == "degraded"
        assert broker.stats("jobs").ready == 60
    finally:
        broker.close()


def test_messages_that_only_a_snapshot_knows_of_are_lost_and_counted(tmp_path: Path) -> None:
    """A journal without bounds, as of an earlier version, whose oldest segment somebody removed."""
    filled(tmp_path)
    first = min((tmp_path / "journal").glob("*.seg"))
    first.unlink()
    first.with_suffix(".idx").unlink()
    (tmp_path / "journal" / "bounds").unlink()

    broker = small_broker(tmp_path)
    try:
        [lost] = broker.inspect.damage.listed()
        assert lost.kind == LOST
        assert lost.count == 60 - broker.stats("jobs").ready > 0
    finally:
        broker.close()
