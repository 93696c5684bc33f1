"""A full disk: publishing is refused, acknowledging goes on, and it ends by itself."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from openq.errors import DiskFull, Exhausted, JournalFailed, OutOfRoom, Unconfirmed
from openq.journal import writer
from openq.journal.file_journal import Journal
from tests.journal.fake_disk import FakeDisk
from tests.journal.helpers import contents, put, records, small
from tests.waiting import until

ACK = b"ack" * 10


def fill(journal: Journal, record: bytes = b"m" * 100) -> int:
    """Publish until it is refused, as the broker does."""
    count = 0
    while True:
        with journal.lock:
            if not journal.can_publish(len(record)):
                return count
            location = journal.append(record)
        journal.wait(location)
        count += 1
        assert count < 1000
        # The preparer needs a moment to notice; the broker is never this alone with a full disk.
        until(lambda: journal._pool.spares or journal._pool.full)


def until_refused(journal: Journal, record: bytes) -> tuple[int, DiskFull]:
    for count in range(1000):
        try:
            put(journal, record)
        except DiskFull as refusal:
            return count, refusal
    raise AssertionError("it never ends")


def test_publishing_stops_and_acknowledging_goes_on_until_space_returns(tmp_path: Path) -> None:
    disk = FakeDisk(tmp_path, capacity=12_000)
    journal = small(tmp_path / "d", io=disk)
    until(lambda: journal._pool.reserve)
    published = fill(journal)
    assert published > 20

    # The reserve is enough for acks.
    acks = [put(journal, ACK)[0] for _ in range(20)]
    with journal.lock:
        assert not journal.can_publish(1)
    assert journal.read_many(acks) == [ACK] * 20

    disk.capacity = 40_000
    until(lambda: not journal._pool.full)
    with journal.lock:
        assert journal.can_publish(100)
    until(lambda: journal._pool.reserve)
    put(journal, b"published again")
    journal.close()
    found = contents(tmp_path / "d")
    assert len(found) == published + 20 + 1
    assert found[-1] == b"published again"


def test_when_the_reserve_is_used_up_too_appending_is_refused_and_nothing_breaks(tmp_path: Path) -> None:
    disk = FakeDisk(tmp_path, capacity=8_000)
    journal = small(tmp_path / "d", io=disk)
    published = fill(journal)
    acks, refusal = until_refused(journal, ACK)
    assert "reserve" in str(refusal)
    assert acks > 25
    assert journal.error is None

    disk.capacity = 40_000
    until(lambda: not journal._pool.full)
    put(journal, ACK)
    journal.close()
    assert len(contents(tmp_path / "d")) == published + acks + 1


def test_freeing_segments_ends_the_state(tmp_path: Path) -> None:
    disk = FakeDisk(tmp_path, capacity=16_000)
    journal = small(tmp_path / "d", io=disk)
    fill(journal)
    put(journal, ACK)

    journal.drop_before(journal.end_location >> 32)
    until(lambda: not journal._pool.full)
    with journal.lock:
        assert journal.can_publish(100)
    put(journal, b"again")
    journal.close()


def test_a_journal_opens_on_a_full_disk(tmp_path: Path) -> None:
    disk = FakeDisk(tmp_path, capacity=12_000)
    journal = small(tmp_path / "d", io=disk)
    published = fill(journal)
    journal.close()

    disk.capacity = 0
    journal = small(tmp_path / "d", io=disk)
    assert len(list(journal.replay())) == published
    until(lambda: journal._pool.full)
    put(journal, ACK)
    journal.close()


def test_a_new_journal_on_a_full_disk_says_so(tmp_path: Path) -> None:
    with pytest.raises(DiskFull, match="no room for a journal"):
        small(tmp_path / "d", io=FakeDisk(tmp_path, capacity=500))


def test_a_large_record_that_does_not_fit_is_refused_before_anything_happens(tmp_path: Path) -> None:
    disk = FakeDisk(tmp_path, capacity=20_000)
    journal = small(tmp_path / "d", io=disk)
    put(journal, b"before")

    with pytest.raises(DiskFull, match="no room for a record"):
        put(journal, bytes(50_000))
    put(journal, b"after")
    journal.close()
    assert contents(tmp_path / "d") == [b"before", b"after"]


def test_space_that_comes_back_within_a_second_is_waited_for(tmp_path: Path) -> None:
    left = [3]

    def fault(operation: str, count: int) -> str | None:
        if armed and operation == "pwrite" and left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return None

    armed: list[bool] = []
    journal = small(tmp_path / "d", io=FakeDisk(tmp_path, fault=fault))
    armed.append(True)
    put(journal, b"x")

    assert left == [0]
    assert journal.error is None
    journal.close()


class Refusing:
    """A fault that refuses one kind of call for as long as it is armed."""

    def __init__(self, operation: str, error: int) -> None:
        self.operation = operation
        self.error = error
        self.armed = False

    def __call__(self, operation: str, count: int) -> str | None:
        if self.armed and operation == self.operation:
            raise OSError(self.error, os.strerror(self.error))
        return None


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "NO_SPACE_TIMEOUT_S", 0.02)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.ENOMEM])
@pytest.mark.parametrize("alone", [True, False])
def test_a_write_that_finds_no_room_is_waited_out(tmp_path: Path, error: int, alone: bool) -> None:
    """Callers that wait get an uncertain outcome, later ones are refused; then it continues by itself."""
    fault = Refusing("pwrite", error)
    journal = small(tmp_path / "d", io=FakeDisk(tmp_path, fault=fault))
    until(lambda: journal._pool.reserve and journal._pool.spares)
    put(journal, b"before")
    fault.armed = True
    if alone:
        with pytest.raises(Unconfirmed):
            put(journal, b"in doubt")
    else:  # the writer commits, and one more waits for it
        [location] = put(journal, b"in doubt", wait=False)
        journal.flush()
        until(lambda: journal._stalled)
        with pytest.raises(Unconfirmed):
            journal.wait(location)

    assert journal.error is None
    with journal.lock:
        assert not journal.can_publish(1)
        with pytest.raises(OutOfRoom):
            journal.append(b"refused")
    with pytest.raises(OutOfRoom):
        put(journal, b"refused")

    fault.armed = False
    until(lambda: journal._stalled is None)
    put(journal, b"after")
    journal.close()
    assert contents(tmp_path / "d") == [b"before", b"in doubt", b"after"]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EDQUOT])
@pytest.mark.parametrize("operation", ["create", "fallocate", "rename"])
def test_a_segment_that_cannot_be_made_is_waited_out(tmp_path: Path, operation: str, error: int) -> None:
    fault = Refusing(operation, error)
    journal = small(tmp_path / "d", io=FakeDisk(tmp_path, fault=fault))
    until(lambda: journal._pool.reserve and journal._pool.spares)
    fault.armed = True
    kept: list[bytes] = []
    refusal: OutOfRoom | None = None
    for record in records(500):
        try:
            put(journal, record)
        except OutOfRoom as error_:
            refusal = error_
        if refusal is None or isinstance(refusal, Unconfirmed):
            kept.append(record)
        if refusal is not None:
            break
    assert isinstance(refusal, Unconfirmed | (DiskFull if error == errno.EDQUOT else Exhausted))
    assert journal.error is None
    assert 5 < len(kept) < 500

    fault.armed = False
    until(lambda: journal._stalled is None and not journal._pool.full)
    put(journal, b"after")
    journal.close()
    assert contents(tmp_path / "d") == [*kept, b"after"]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EIO])
def test_a_failed_sync_is_never_repeated(tmp_path: Path, error: int) -> None:
    fault = Refusing("fdatasync", error)
    journal = small(tmp_path / "d", io=FakeDisk(tmp_path, fault=fault))
    fault.armed = True
    with pytest.raises(JournalFailed):
        put(journal, b"x")
    fault.armed = False
    with pytest.raises(JournalFailed):
        put(journal, b"y")
    journal.close()


@pytest.mark.usefixtures("impatient")
def test_closing_does_not_wait_for_a_disk_that_stays_full(tmp_path: Path) -> None:
    fault = Refusing("pwrite", errno.ENOSPC)
    journal = small(tmp_path / "d", io=FakeDisk(tmp_path, fault=fault))
    put(journal, b"before")
    fault.armed = True
    with pytest.raises(Unconfirmed):
        put(journal, b"in doubt")

    journal.close()

    assert contents(tmp_path / "d") == [b"before"]


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_record_that_cannot_be_read_for_want_of_descriptors_is_not_damaged(
    tmp_path: Path, error: int
) -> None:
    class Closed(FakeDisk):
        armed = False

        def open(self, path: str, flags: int) -> int:
            if self.armed:
                raise OSError(error, os.strerror(error))
            return super().open(path, flags)

    disk = Closed(tmp_path)
    journal = small(tmp_path / "d", io=disk)
    locations = [put(journal, record)[0] for record in records(60)]
    journal.close()
    journal = small(tmp_path / "d", io=disk)
    disk.armed = True
    with pytest.raises(Exhausted):
        journal.read(locations[0])
    with pytest.raises(Exhausted):
        journal.read_many(locations[:5])

    disk.armed = False
    assert journal.read_many(locations) == records(60)
    journal.close()


def test_when_the_keeper_is_late_the_writer_makes_the_segment(tmp_path: Path) -> None:
    journal = small(tmp_path)
    journal._preparer.stop()
    everything = records(300)
    put(journal, *everything)

    assert [record for _, record in journal.replay()] == everything
    journal.close()
    assert contents(tmp_path) == everything


def test_when_the_keeper_is_late_and_the_disk_full_the_reserve_serves(tmp_path: Path) -> None:
    disk = FakeDisk(tmp_path)
    journal = small(tmp_path / "d", io=disk)
    until(lambda: journal._pool.reserve and journal._pool.spares)
    journal._preparer.stop()
    disk.capacity = 0
    count, _ = until_refused(journal, b"x" * 60)
    assert count > 30
    with journal.lock:
        assert not journal.can_publish(1)
    disk.capacity = None
    journal.close()
    assert contents(tmp_path / "d") == [b"x" * 60] * count


def test_a_small_rest_of_the_disk_is_used(tmp_path: Path) -> None:
    # Room for the first segment, the bounds, the reserve and one more of the first's size, not of twice.
    disk = FakeDisk(tmp_path, capacity=1024 + 1024 + 2048 + 1024 + 100)
    journal = small(tmp_path / "d", io=disk)
    until(lambda: journal._pool.spares)
    assert journal._pool.spares[0].size == 1024
    assert not journal._pool.full
    journal.close()


def test_other_errors_of_the_keeper_are_tried_again(tmp_path: Path) -> None:
    broken = [True]

    def fault(operation: str, count: int) -> str | None:
        if broken and count > 12:
            raise OSError(errno.EIO, "broken for a while") if operation == "fallocate" else AssertionError
        return None

    disk = FakeDisk(tmp_path)
    journal = small(tmp_path / "d", io=disk)
    until(lambda: journal._pool.spares)
    with journal.lock:
        journal._pool.spares.clear()
    disk.fault = lambda operation, count: fault("fallocate", 99) if operation == "fallocate" else None
    journal._preparer.wake()
    until(lambda: disk.calls.count("fallocate") > 4)
    assert journal.error is None
    assert not journal._pool.full
    broken.clear()
    until(lambda: journal._pool.spares)
    journal.close()


def test_a_reserve_in_use_is_kept_for_acks_over_a_restart(tmp_path: Path) -> None:
    disk = FakeDisk(tmp_path, capacity=12_000)
    journal = small(tmp_path / "d", io=disk)
    fill(journal)
    acks = 0
    while not in_reserve(journal):
        put(journal, ACK)
        acks += 1
    journal.close()

    disk.capacity = 0
    for _ in range(3):
        journal = small(tmp_path / "d", io=disk)
        with journal.lock:
            assert not journal.can_publish(1)
        put(journal, ACK)
        acks += 1
        with journal.lock:
            assert not journal.can_publish(1)
        journal.close()

    disk.capacity = None
    journal = small(tmp_path / "d", io=disk)
    with journal.lock:
        assert journal.can_publish(100)
        assert journal._pool.reserve is not None
    journal.close()
    assert contents(tmp_path / "d").count(ACK) == acks


def in_reserve(journal: Journal) -> bool:
    spare = journal._live[-1].segment.spare
    return spare is not None and spare.is_reserve


def test_a_segment_after_the_reserve_is_an_ordinary_one_again(tmp_path: Path) -> None:
    disk = FakeDisk(tmp_path, capacity=12_000)
    journal = small(tmp_path / "d", io=disk)
    fill(journal)
    while not in_reserve(journal):
        put(journal, ACK)
    disk.capacity = None
    until(lambda: not journal._pool.full)
    while in_reserve(journal):
        put(journal, ACK)
    journal.close()

    journal = small(tmp_path / "d", io=disk)
    assert not in_reserve(journal)
    with journal.lock:
        assert journal.can_publish(100)
    journal.close()


def test_a_reserve_that_was_taken_is_not_replaced_before_it_has_its_new_name(tmp_path: Path) -> None:
    journal = small(tmp_path)
    until(lambda: journal._pool.reserve)
    segment_pool = journal._pool
    with journal.lock:
        reserve = segment_pool.reserve
        assert reserve is not None
        segment_pool.take(reserve)
    before = os.stat(reserve.path).st_ino
    assert segment_pool.refill(1024) is not None
    assert os.stat(reserve.path).st_ino == before

    os.rename(reserve.path, tmp_path / "elsewhere")
    reserve.path = str(tmp_path / "elsewhere")
    assert segment_pool.refill(1024) is None
    assert segment_pool.reserve is not None
    journal.close()


def test_without_a_reserve_a_segment_is_planned_only_where_free_space_is_seen(tmp_path: Path) -> None:
    disk = FakeDisk(tmp_path)
    journal = small(tmp_path / "d", io=disk)
    until(lambda: journal._pool.reserve and journal._pool.spares)
    journal._preparer.stop()  # nothing is made while we look
    with journal.lock:
        spares, reserve = list(journal._pool.spares), journal._pool.reserve
        journal._pool.spares.clear()
        assert journal.can_publish(10_000)  # the reserve stands in
        journal._pool.reserve = None
        assert journal.can_publish(10_000)  # and so does free space
        disk.capacity = 0
        assert not journal.can_publish(10_000)
        disk.capacity = None
        journal._pool.spares, journal._pool.reserve = spares, reserve
    journal.close()


def test_a_directory_that_was_removed_is_tried_ever_less_often(tmp_path: Path) -> None:
    journal = small(tmp_path / "d")
    until(lambda: journal._pool.reserve and journal._pool.spares)
    journal._preparer.stop()
    pool = journal._pool
    with journal.lock:
        pool.spares.clear()
    shutil.rmtree(journal.directory)

    pauses = [pool.refill(1024) for _ in range(2000)]

    assert pauses[:3] == [0.2, 0.4, 0.8]
    assert pauses[-1] == 30
