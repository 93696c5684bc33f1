"""What the tests of the library share."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import openq
from openq import OpenQ
from openq.client.message import ReceivedMessage
from tests.waiting import until

Make = Callable[..., OpenQ]

# For what reaches behind the verbs of the library, or is not offered over the network.
in_process = pytest.mark.parametrize("make", ["memory", "journal"], indirect=True)


@contextmanager
def opening(target: dict[str, Any]) -> Iterator[Make]:
    """Opens queues in one place, unless their dlq says where; all are closed at the end."""
    opened: list[OpenQ] = []

    def open_queue(name: str = "jobs", *args: Any, **options: Any) -> OpenQ:
        beside = args[1] if len(args) > 1 else options.get("dlq")
        where = {} if isinstance(beside, OpenQ) else target
        opened.append(OpenQ(name, *args, **where, **options))
        return opened[-1]

    yield open_queue
    for queue in opened:
        queue.close()


def take(queue: OpenQ, **options: Any) -> ReceivedMessage:
    message = queue.receive(timeout=0, **options)
    assert message is not None
    return message


def bodies(queue: OpenQ) -> list[Any]:
    return [message.body for message in queue.queue]


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def ended(*threads: threading.Thread) -> bool:
    for thread in threads:
        thread.join(60)
    return not any(thread.is_alive() for thread in threads)


def until_waiting(queue: OpenQ, count: int) -> None:
    until(lambda: queue.stats().waiters == count, f"{count} receivers wait")


SCHEMAS = Path(openq.__file__).parent / "schemas"

_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "null": type(None),
    "boolean": bool,
}
_CHECKED = {
    *("$schema", "$id", "$defs", "title", "description", "type", "required", "properties", "items"),
    *("enum", "const", "pattern", "minLength", "minimum", "maximum", "anyOf", "$ref", "if", "then"),
}


def schema(view: str) -> dict[str, Any]:
    document = json.loads((SCHEMAS / f"{view}.json").read_text())
    assert isinstance(document, dict)
    return document


def violations(value: Any, rule: Any, root: Any = None, where: str = "$") -> list[str]:
    """What a JSON Schema has against a value. Knows the words that our schemas use, and no others."""
    root = rule if root is None else root
    assert rule.keys() <= _CHECKED, f"this validator does not know {rule.keys() - _CHECKED}"
    if "$ref" in rule:
        target = root
        for part in rule["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        return violations(value, target, root, where)
    found: list[str] = []
    if "type" in rule:
        names = rule["type"] if isinstance(rule["type"], list) else [rule["type"]]
        if not any(_is(value, name) for name in names):
            return [f"{where} is not {' or '.join(names)}"]
    if "enum" in rule and value not in rule["enum"]:
        found.append(f"{where} is not among {rule['enum']}")
    if "const" in rule and value != rule["const"]:
        found.append(f"{where} is not {rule['const']!r}")
    if isinstance(value, str):
        if not re.search(rule.get("pattern", ""), value):
            found.append(f"{where} does not look like {rule['pattern']}")
        if len(value) < rule.get("minLength", 0):
            found.append(f"{where} is too short")
    if isinstance(value, int) and not rule.get("minimum", value) <= value <= rule.get("maximum", value):
        found.append(f"{where} is out of range")
    if "anyOf" in rule and all(violations(value, each, root, where) for each in rule["anyOf"]):
        found.append(f"{where} is none of the choices")
    if isinstance(value, dict):
        found += [f"{where}.{name} is missing" for name in rule.get("required", ()) if name not in value]
        for name, each in rule.get("properties", {}).items():
            if name in value:
                found += violations(value[name], each, root, f"{where}.{name}")
    if isinstance(value, list) and "items" in rule:
        for i, each in enumerate(value):
            found += violations(each, rule["items"], root, f"{where}[{i}]")
    if "if" in rule and not violations(value, rule["if"], root, where):
        found += violations(value, rule.get("then", {}), root, where)
    return found


def _is(value: Any, name: str) -> bool:
    return isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool))
