"""`openq connections ls`, `consumers`, `show` and `close`, and `openq server ls`."""

from __future__ import annotations

from argparse import Namespace
from itertools import islice
from typing import Any

from .api import connect, path_part
from .output import count_text, duration_text, print_fields, print_json, print_list, print_result, print_table
from .terminal import OK, say, size_text


def ls(options: Namespace) -> int:
    api = connect(options)
    found = list(
        islice(
            api.pages(
                "/connections",
                "connections",
                "next",
                protocol=options.protocol,
                user=options.by,
                queue=options.queue,
                peer=options.peer,
                server=options.server,
            ),
            options.limit,
        )
    )
    print_list(
        options,
        found,
        {
            "id": "id",
            "protocol": "protocol",
            "user": "user",
            "peer": "peer",
            "state": "state",
            "since": "since",
            "queues": _queues_text,
            "consumers": "consumers",
            "in flight": "in_flight",
            "client": lambda each: each["client"] or each["name"],
            "server": "server",
        },
        right=("consumers", "in flight"),
        empty="no connections",
    )
    is_filtered = any((options.by, options.queue, options.peer, options.server))
    if not options.json and not is_filtered and options.protocol in (None, "http"):
        _say_summary(api.get("/connections", limit=1)["http"])
    return OK


def _say_summary(http: dict[str, Any] | None) -> None:
    if http is not None and http["connections"]:
        text = count_text(http["connections"], "HTTP connection")
        say(f"and {text}: {http['busy']} busy, {http['waiting']} of them waiting for messages")


def _queues_text(connection: dict[str, Any]) -> str:
    queues = connection["queues"]
    more = f" and {connection['consumers'] - 3} more" if connection["consumers"] > 3 else ""
    return ", ".join(queues[:3]) + more


def consumers(options: Namespace) -> int:
    pages = connect(options).pages(
        "/consumers", "consumers", "next", queue=options.queue, protocol=options.protocol
    )
    found = list(islice(pages, options.limit))
    print_list(
        options,
        found,
        {
            "queue": "queue",
            "consumer": "name",
            "protocol": "protocol",
            "user": "user",
            "peer": "peer",
            "credit": lambda each: "no limit" if each["credit"] is None else each["credit"],
            "in flight": "in_flight",
            "since": "since",
            "connection": "connection",
        },
        right=("credit", "in flight"),
        empty="no consumers",
    )
    return OK


def show(options: Namespace) -> int:
    found = connect(options).get(f"/connections/{path_part(options.id)}")
    if options.json:
        print_json(found)
        return OK
    print_fields(
        [
            ("id", found["id"]),
            ("server", found["server"]),
            ("protocol", found["protocol"] + (" with TLS" if found["tls"] else "")),
            ("user", f"{found['user']} of account {found['account']}"),
            ("peer", found["peer"]),
            ("client", found["client"] or None),
            ("name", found["name"] or None),
            ("state", found["state"]),
            ("since", found["since"]),
            ("in flight", found["in_flight"]),
            ("unsent", size_text(found["unsent_bytes"])),
            ("published", found["published"]),
            ("delivered", found["delivered"]),
            ("received", size_text(found["received_bytes"])),
            ("sent", size_text(found["sent_bytes"])),
            ("last error", found["last_error"]),
        ]
    )
    for title, names in (
        ("channel", ("number", "prefetch", "unacked", "unconfirmed", "consumers", "confirms")),
        ("subscription", ("id", "queue", "pattern", "queues", "credit", "in_flight")),
        ("consumer", ("name", "queue", "channel", "credit", "in_flight", "active", "since")),
    ):
        items = found[f"{title}_details"]
        if items:
            print()
            heads = (title, *(name.replace("_", " ") for name in names[1:]))
            print_table(heads, [[_cell(item[name]) for name in names] for item in items])
    return OK


def _cell(value: object) -> object:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value


def close(options: Namespace) -> int:
    reply = connect(options).delete(f"/connections/{path_part(options.id)}", reason=options.reason)
    where = "" if reply["state"] == "closed" else " by its server within seconds"
    print_result(options, reply, f"{options.id} is {reply['state']}{where}: {reply['reason']}")
    return OK


def servers(options: Namespace) -> int:
    print_list(
        options,
        connect(options).get("/servers")["servers"],
        {
            "server": lambda each: each["name"] + (" *" if each["self"] else ""),
            "address": "url",
            "version": "version",
            "up": lambda each: duration_text(each["uptime"]),
            "store": "store",
            "health": lambda each: "ok" if each["healthy"] else each["detail"],
            "roles": lambda each: ", ".join(each["roles"]),
            "connections": lambda each: ", ".join(
                f"{count} {protocol}" for protocol, count in each["connections"].items() if count
            ),
        },
        empty="no servers",
    )
    return OK
