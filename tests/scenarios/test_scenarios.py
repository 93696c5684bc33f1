"""Stories that every broker must agree on: in memory, on disk, and restarted before every single line."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from openq.clock import VirtualClock
from openq.journal.file_journal import Journal
from openq.local.broker import LocalBroker

from .runner import Story, StoryFailed, milliseconds

STORIES = sorted(Path(__file__).parent.glob("*.txt"))


class Memory:
    """No disk, no restarts."""

    def __init__(self, path: Path) -> None:
        self.clock = VirtualClock()
        self.broker = self.open(path)

    def open(self, path: Path) -> LocalBroker:
        return LocalBroker(clock=self.clock, seed=1)

    def before_line(self) -> None:
        pass


class OnDisk(Memory):
    """In a journal of small files: they are made and removed thousands of times."""

    def open(self, path: Path) -> LocalBroker:
        self.path = path
        journal = Journal(path, segment_bytes=1 << 16, reserve_bytes=1 << 16)
        return LocalBroker(clock=self.clock, seed=1, journal=journal)


class Reopened(OnDisk):
    """Closed in good order and opened again before every line: what a snapshot brings back."""

    def before_line(self) -> None:
        self.broker.close()
        self.broker = self.open(self.path)


class Crashed(OnDisk):
    """Continues from what was on disk when the power went, before every line: what records bring back."""

    def before_line(self) -> None:
        self.broker.sync()
        copy = self.path.with_name(f"{self.path.name}x")
        # Not what is made in the background: it is made again.
        shutil.copytree(self.path, copy, ignore=shutil.ignore_patterns("*.tmp", "reserve"))
        crashed, self.broker = self.broker, self.open(copy)
        crashed.close()
        shutil.rmtree(crashed.journal.path if crashed.journal else copy)


# A broker of another kind joins here.
BROKERS = {"memory": Memory, "journal": OnDisk, "reopened": Reopened, "crashed": Crashed}


def _plays() -> Iterator[object]:
    for story in STORIES:
        text = story.read_text()
        wanted = next(
            (line[3:].split() for line in text.splitlines() if line.startswith("on ")), list(BROKERS)
        )
        for kind in filter(BROKERS.__contains__, wanted):
            yield pytest.param(kind, text, id=f"{story.stem}-{kind}")


@pytest.mark.parametrize(("kind", "text"), list(_plays()))
def test_the_story_is_true(kind: str, text: str, tmp_path: Path) -> None:
    stage = BROKERS[kind](tmp_path / "data")
    try:
        Story(stage).play(text)
    finally:
        stage.broker.close()


def test_a_story_that_is_not_true_says_where(tmp_path: Path) -> None:
    stage = Memory(tmp_path)
    Story(stage).play("queue q\n0s receive q -> nothing\n")

    with pytest.raises(StoryFailed, match=r"line 2: .*\n +got hello#1"):
        Story(stage).play("0s publish q hello\n0s receive q -> hello#2")


def test_times_have_units() -> None:
    assert [milliseconds(text) for text in ("5ms", "2s", "1.5m", "1h", "1d", "1y")] == [
        5,
        2_000,
        90_000,
        3_600_000,
        86_400_000,
        31_536_000_000,
    ]
