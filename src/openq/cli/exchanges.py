"""`openq exchange`."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from .api import connect, path_part
from .arguments import attributes_of
from .output import count_text, escape_control, print_json, print_list, print_result
from .terminal import EMPTY, OK, say


def ls(options: Namespace) -> int:
    api = connect(options)
    if options.exchange is None:
        exchanges = api.get("/exchanges")["exchanges"]
    else:
        exchanges = [api.get(f"/exchanges/{path_part(options.exchange)}")]
    bindings: dict[str, list[Any]] = {}
    for binding in api.get("/bindings")["bindings"]:
        bindings.setdefault(binding["source"], []).append(binding)
    print_list(
        options,
        exchanges,
        {
            "exchange": "name",
            "kind": "kind",
            "bindings": lambda each: "; ".join(map(_text, bindings.get(each["name"], ()))),
        },
        empty="no exchanges",
        to_json=lambda each: {**each, "bindings": bindings.get(each["name"], [])},
    )
    return OK


def bind(options: Namespace) -> int:
    answer = connect(options).post("/bindings", _binding(options))
    outcome = "bound" if answer["changed"] else "was bound before"
    print_result(options, answer, f"{options.destination} {outcome} to {options.source}")
    return OK


def unbind(options: Namespace) -> int:
    answer = connect(options).delete("/bindings", _binding(options))
    print_result(options, answer, f"{options.destination} unbound from {options.source}")
    return OK


def route(options: Namespace) -> int:
    """Where a message would go: nothing is published."""
    request = {"routing_key": options.key, "attributes": attributes_of(options.attribute) or {}}
    found = connect(options).post(f"/exchanges/{path_part(options.exchange)}/route", request)
    if options.json:
        print_json(found)
        return OK if found["queues"] or found["others"] else EMPTY
    for name in found["queues"]:
        print(escape_control(name))
    for name in found["missing"]:
        say(f"{name} is bound, but does not exist")
    if found["others"]:
        say(f"and {count_text(found['others'], 'queue')} that you may not see")
    elif not found["queues"]:
        say("no queue: it would be dropped, or returned if it is mandatory")
        return EMPTY
    return OK


def _binding(options: Namespace) -> dict[str, object]:
    return {
        "source": options.source,
        "destination": options.destination,
        "key": options.key,
        "to_exchange": options.to_exchange,
    }


def _text(binding: Any) -> str:
    kind = "exchange " if binding["to_exchange"] else ""
    key = f" ({binding['key']})" if binding["key"] else ""
    return f"{kind}{binding['destination']}{key}"
