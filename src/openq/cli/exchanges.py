"""`openq exchange`."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from .api import connect, path_part
from .output import print_list, print_result
from .terminal import OK


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
