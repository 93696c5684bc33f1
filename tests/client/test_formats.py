"""Whatever is published comes back the same: from the queue, through JSON, through a backup."""

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from openq import Message, OpenQ
from openq.client.codecs import Codec
from tests.client.helpers import schema, take, violations

texts = st.text(st.characters(exclude_categories=["Cs"]))
plain = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
)
json_values = st.recursive(
    plain | texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=8
)
bodies = json_values | st.binary()
attributes = st.dictionaries(
    texts.filter(lambda name: not name.startswith("$")), plain | texts | st.binary() | st.lists(st.binary())
)


@given(body=bodies)
def test_every_body_is_decoded_to_what_was_encoded(body: Any) -> None:
    codec = Codec()
    data, encoding = codec.encode(body)

    again = codec.decode(data, encoding)

    assert (again, type(again)) == (body, type(body))


@given(
    body=bodies,
    attributes=attributes,
    priority=st.integers(0, 255),
    message_type=st.none() | texts.filter(bool),
)
def test_a_message_survives_json_in_every_view(
    body: Any, attributes: dict[str, Any], priority: int, message_type: str | None
) -> None:
    with OpenQ("jobs") as queue:
        queue.publish(body, attributes=attributes, priority=priority, message_type=message_type)
        message = take(queue)
        for view in ("transmission", "persistence", "consumption"):
            assert violations(message.to_dict(view), schema(view)) == []
            again = Message.from_json(message.to_json(view))
            assert (again.id, again.body, again.timestamp) == (message.id, body, message.timestamp)
        assert (again.attributes, again.priority, again.message_type) == (attributes, priority, message_type)


@given(messages=st.lists(st.tuples(bodies, attributes), max_size=5))
def test_a_backup_brings_back_what_was_saved(
    messages: list[tuple[Any, dict[str, Any]]], tmp_path_factory: Any
) -> None:
    file: Path = tmp_path_factory.mktemp("backup") / "backup.json"
    with OpenQ("jobs") as queue:
        for body, its_attributes in messages:
            queue.publish(body, attributes=its_attributes)
        before = [(message.id, message.body, message.attributes) for message in queue.queue]
        queue.save(file)
        queue.purge()

        assert queue.load(file) == len(messages)

        assert [(message.id, message.body, message.attributes) for message in queue.queue] == before
