"""Messages with a protocol's own properties, in the hands of the library: they stay unless changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from openq import OpenQ
from openq.errors import InvalidSetting
from openq.local.broker import LocalBroker
from openq.model import Properties, plain_options

WIRE = b"\x80\x00\x0atext/plain"
INFO = Properties.from_amqp(WIRE, "someone")


@pytest.fixture(params=["memory", "journal"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenQ]:
    queue = OpenQ("q", path=None if request.param == "memory" else tmp_path / "data")
    assert isinstance(queue.broker, LocalBroker)
    queue.broker.publish_bodies("q", [b"a", b"b"], 0, INFO, plain_options(("amq.direct", "key"), "order"))
    yield queue
    queue.close()


def info_of(queue: OpenQ, message_id: str) -> Properties:
    properties = queue.broker.inspect.find("q", message_id).properties
    assert properties is not None
    return properties


def test_the_library_shows_them_as_attributes(queue: OpenQ) -> None:
    first, _ = queue.peek_many(2)

    assert first.attributes == {"content_type": "text/plain"}
    assert (first.publisher, first.message_type) == ("someone", "order")


def test_another_body_leaves_them_as_they_came(queue: OpenQ) -> None:
    first, second = queue.peek_many(2)

    queue.edit(first.id, b"changed")

    assert info_of(queue, first.id) == INFO
    assert info_of(queue, second.id) == INFO


def test_other_attributes_or_another_type_replace_the_amqp_properties(queue: OpenQ) -> None:
    first, second = queue.peek_many(2)

    queue.edit(first.id, b"changed", attributes={"a": 1})
    queue.edit(second.id, b"changed", message_type="other")

    assert info_of(queue, first.id) == Properties({"a": 1}, "someone")
    assert info_of(queue, second.id) == Properties({"content_type": "text/plain"}, "someone")


def test_a_backup_holds_them(queue: OpenQ, tmp_path: Path) -> None:
    ids = [message.id for message in queue.peek_many(2)]
    queue.save(tmp_path / "backup.json")
    queue.purge()

    assert queue.load(tmp_path / "backup.json") == 2
    assert [info_of(queue, each) for each in ids] == [INFO, INFO]


def edited(path: Path, **values: object) -> None:
    head, *lines = path.read_text().splitlines()
    path.write_text("\n".join([head, *(json.dumps(json.loads(line) | values) for line in lines)]) + "\n")


def test_attributes_changed_in_a_backup_count_more_than_what_came(queue: OpenQ, tmp_path: Path) -> None:
    first, _ = queue.peek_many(2)
    queue.save(tmp_path / "backup.json")
    queue.purge()
    edited(tmp_path / "backup.json", attributes={"a": 1})

    queue.load(tmp_path / "backup.json")

    assert info_of(queue, first.id) == Properties({"a": 1}, "someone")


@pytest.mark.parametrize("damaged", ["%", "gAAK", 5])
def test_properties_that_cannot_be_read_make_a_backup_a_bad_one(
    queue: OpenQ, tmp_path: Path, damaged: object
) -> None:
    queue.save(tmp_path / "backup.json")
    queue.purge()
    edited(tmp_path / "backup.json", properties=damaged)

    with pytest.raises(InvalidSetting, match=r"backup\.json"):
        queue.load(tmp_path / "backup.json")
    assert queue.stats().ready == 0
