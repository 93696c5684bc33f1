"""`openq queue ...`: list, create, change, pause, empty and remove queues of a server."""

from __future__ import annotations

from .parser import (
    CommandGroup,
    Parser,
    add_confirmation,
    add_json,
    add_server,
    count,
    positive,
    seconds,
    seconds_or_forever,
    size,
)
from .terminal import FAILED, OK, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable
    from typing import Any

    from ..settings import Setting


def add(name: str, verbs: CommandGroup, help: str) -> None:
    queue = verbs.add(
        name,
        None,
        help,
        [
            ("openq queue ls", "every queue, and what is in it"),
            ("openq queue create orders --dlq orders-dead", "with a place for what fails three times"),
            ("openq queue show orders", "settings and counters"),
            ("openq queue pause orders", "hand out nothing until `openq queue resume orders`"),
        ],
    ).group()
    _add_ls(queue)
    _add_create(queue)
    show = queue.add(
        "show",
        _show,
        "show settings and counters of a queue",
        [("openq queue show orders", "for people"), ("openq queue show orders --json", "for programs")],
    )
    _finish(show)
    edit = queue.add(
        "edit",
        _edit,
        "change some settings of a queue",
        [
            ("openq queue edit orders --visibility-timeout 2m", "the rest stays as it is"),
            ("openq queue edit orders --dlq orders-dead --max-receives 5", "dead letters from now on"),
            ("openq queue edit orders --no-dlq", "and no longer"),
        ],
    )
    _add_settings(edit)
    edit.add_argument("--no-dlq", action="store_true", help="no dead-letter queue, and no limit of receives")
    _finish(edit)
    rm = queue.add(
        "rm",
        _rm,
        "remove a queue and everything in it",
        [
            ("openq queue rm orders", "asks first, and tells how many messages go"),
            ("openq queue rm orders --if-empty --yes", "only if nothing is lost by it"),
            ("openq queue rm orders --dry-run", "how many messages would go"),
        ],
    )
    rm.add_argument("--if-empty", action="store_true", help="not if there are messages in it")
    add_confirmation(rm)
    _finish(rm)
    purge = queue.add(
        "purge",
        _purge,
        "remove everything in a queue; the queue stays",
        [
            ("openq queue purge orders", "asks first, and tells how many messages go"),
            ("openq queue purge orders --yes", "for scripts"),
        ],
        "Messages with consumers go too.",
    )
    add_confirmation(purge)
    _finish(purge)
    pause = queue.add(
        "pause",
        _pause,
        "hand out nothing until it is resumed",
        [("openq queue pause orders", "publishing goes on, and so does what was handed out")],
    )
    _finish(pause)
    resume = queue.add(
        "resume",
        _resume,
        "hand out messages again",
        [("openq queue resume orders", "the opposite of `openq queue pause orders`")],
    )
    _finish(resume)


def _finish(parser: Parser) -> None:
    parser.add_argument("queue", metavar="QUEUE", help="its name")
    add_json(parser)
    add_server(parser)


def _add_ls(verbs: CommandGroup) -> None:
    ls = verbs.add(
        "ls",
        _ls,
        "list queues and what is in them",
        [
            ("openq queue ls", "all"),
            ("openq queue ls orders", "those that begin with orders"),
            ("openq queue ls --json", "one JSON object per line, with settings and counters"),
        ],
    )
    ls.add_argument("prefix", nargs="?", default="", metavar="PREFIX", help="how the names begin")
    add_json(ls, "one JSON object per line")
    add_server(ls)


def _add_create(verbs: CommandGroup) -> None:
    create = verbs.add(
        "create",
        _create,
        "create a queue",
        [
            ("openq queue create orders", "with the defaults"),
            ("openq queue create orders --dlq orders-dead --max-receives 5", "the dlq is created too"),
            ("openq queue create payments --fifo --dedup-by-content", "strict order, no duplicates"),
            ("openq queue create orders --if-absent", "no error if it is there, whatever its settings"),
        ],
        "A queue that exists with the same settings is fine; with other settings it is an error.",
    )
    create.add_argument("--if-absent", action="store_true", help="leave a queue that exists as it is")
    _add_settings(create)
    _finish(create)


def _add_settings(parser: Parser) -> None:
    from argparse import BooleanOptionalAction

    from ..settings import SETTINGS

    group = parser.add_argument_group("settings")
    shown = [setting for setting in SETTINGS if setting.in_cli]
    for setting in sorted(shown, key=lambda each: each.kind == "flag"):
        flag = f"--{setting.name.replace('_', '-')}"
        if setting.kind == "flag":
            group.add_argument(
                flag, action=BooleanOptionalAction, default=None, dest=setting.name, help=setting.help
            )
        else:
            metavar, kind = _argument_of(setting)
            choices = setting.choices or None
            group.add_argument(
                flag, metavar=metavar, type=kind, choices=choices, dest=setting.name, help=setting.help
            )


def _argument_of(setting: Setting) -> tuple[str, Callable[[str], object]]:
    """The metavar and the type of an argument."""
    if setting.kind == "duration":
        return "TIME", seconds_or_forever if setting.is_endless else seconds
    if setting.kind == "count":
        return "N", positive if setting.minimum else count
    if setting.kind == "bytes":
        return "SIZE", size
    return ("QUEUE" if setting.kind == "queue" else "KIND"), str


def _given_settings(options: Namespace) -> dict[str, Any]:
    from ..parsing import FOREVER
    from ..settings import SETTINGS

    given = {each: getattr(options, each.name) for each in SETTINGS if each.in_cli}
    return {
        setting.name: None if setting.is_endless and value == FOREVER else value
        for setting, value in given.items()
        if value is not None
    }


# -- what they do -------------------------------------------------------------------------------


def _ls(options: Namespace) -> int:
    from .api import connect
    from .output import duration_text, print_json, print_table

    found = connect(options).pages("/queues", "queues", "next", prefix=options.prefix or None)
    if options.json:
        for queue in found:
            print_json(queue)
        return OK
    rows = []
    for queue in found:
        stats, settings = queue["stats"], queue["settings"]
        notes = [word for word in ("fifo", "paused", "relaxed") if settings[word]]
        if settings["dlq"]:
            notes.append(f"dlq {settings['dlq']}")
        rows.append(
            (
                queue["name"],
                stats["ready"],
                stats["delayed"],
                stats["in_flight"],
                duration_text(stats["oldest_age"]),
                stats["waiters"],
                ", ".join(notes),
            )
        )
    numbers = ("ready", "delayed", "in flight", "oldest", "waiting")
    if rows:
        print_table(("queue", *numbers, "notes"), rows, numbers)
    else:
        say("there are no queues" + (f" that begin with {options.prefix}" if options.prefix else ""))
    return OK


def _path(options: Namespace) -> str:
    from .api import path_part

    return f"/queues/{path_part(options.queue)}"


def _create(options: Namespace) -> int:
    from .api import connect
    from .output import print_json

    server = connect(options)
    named = _given_settings(options)
    _create_dlq(server, options.queue, named)
    if options.if_absent:
        status, queue = server.put(_path(options), named, if_absent=True)
        created = status == 201
    else:
        queue = server.post("/queues", {"name": options.queue, **named})
        created = queue.get("created", True)
    if options.json:
        print_json(queue)
    else:
        print(f"queue {options.queue} {'created' if created else 'was there already'}")
    return OK


def _create_dlq(server: Any, queue: str, named: dict[str, Any]) -> None:
    """People forget it, and then dead letters have nowhere to go."""
    from .api import UsageError, path_part

    dlq = named.get("dlq")
    if dlq == queue:
        raise UsageError(f"argument --dlq: {queue} cannot be its own dead-letter queue")
    if dlq:
        status, _ = server.put(f"/queues/{path_part(dlq)}", {}, if_absent=True)
        if status == 201:
            say(f"queue {dlq} created for its dead letters")


def _edit(options: Namespace) -> int:
    from .api import UsageError, connect

    named = _given_settings(options)
    if options.no_dlq:
        if "dlq" in named or "max_receives" in named:
            raise UsageError("--no-dlq contradicts --dlq and --max-receives")
        named |= {"dlq": None, "max_receives": None}
    if not named:
        raise UsageError("name at least one setting to change; see `openq queue edit --help`")
    server = connect(options)
    before = server.get(_path(options))  # before a dlq is created for a queue that does not exist
    _create_dlq(server, options.queue, named)
    _print_changes(options, before, server.patch(_path(options), named))
    return OK


def _show(options: Namespace) -> int:
    from .api import connect

    _print_queue(options, connect(options).get(_path(options)))
    return OK


def _print_queue(options: Namespace, queue: dict[str, Any]) -> None:
    from .output import print_fields, print_json

    if options.json:
        print_json(queue)
        return
    stats = {key: value for key, value in queue["stats"].items() if key != "counters"}
    rows = {"name": queue["name"], **stats, **queue["stats"]["counters"], **queue["settings"]}
    print_fields([(key.replace("_", " "), _setting_text(key, value)) for key, value in rows.items()])


def _setting_text(key: str, value: object) -> object:
    from .output import duration_text
    from .terminal import size_text

    kind, is_endless = _kind_of(key)
    if value is None and is_endless:
        return "for ever"
    if kind == "duration" and isinstance(value, int | float):
        return duration_text(value)
    if kind == "bytes" and isinstance(value, int):
        return size_text(value)
    if key == "retry" and isinstance(value, dict):
        return value["kind"] if value["kind"] == "none" else value
    return value


def _kind_of(key: str) -> tuple[str, bool]:
    """The kind of a setting or a number of a queue, and whether null means that it never ends."""
    from ..settings import SETTINGS

    for setting in SETTINGS:
        if setting.name == key:
            return setting.kind, setting.is_endless
    return {"oldest_age": "duration", "waiting_bytes": "bytes"}.get(key, ""), False


def _print_changes(options: Namespace, before: dict[str, Any], after: dict[str, Any]) -> None:
    from .output import print_fields, print_json

    if options.json:
        print_json(after)
        return
    old, new = before["settings"], after["settings"]
    changed = [key for key in new if new[key] != old.get(key)]
    if not changed:
        say(f"nothing changed: {options.queue} had these settings already")
        return
    rows = []
    for key in changed:
        then, now = (_setting_text(key, each[key]) for each in (old, new))
        rows.append((key.replace("_", " "), f"{_word(now)} (was {_word(then)})"))
    print_fields(rows)


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)


def _rm(options: Namespace) -> int:
    return _delete(options, "rm")


def _purge(options: Namespace) -> int:
    return _delete(options, "purge")


def _delete(options: Namespace, verb: str) -> int:
    from ..client.http import Refused
    from .api import connect
    from .output import NOT_CONFIRMED, confirm, count_text, print_json

    server, path = connect(options), _path(options)
    if_empty = True if verb == "rm" and options.if_empty else None

    def ask(dry_run: bool) -> dict[str, Any]:
        if verb == "rm":
            answer: dict[str, Any] = server.delete(path, if_empty=if_empty, dry_run=dry_run or None)
        else:
            answer = server.post(f"{path}/purge", dry_run=dry_run or None)
        return answer

    if options.dry_run or not options.yes:
        try:
            would = ask(dry_run=True)
        except Refused as error:
            if not options.dry_run or error.code != "queue_in_use":
                raise
            say(f"dry run: this would be refused: {error}")
            return FAILED
        what = count_text(would["messages"], "message")
        if options.dry_run:
            if options.json:
                print_json(would)
            else:
                print(f"dry run: {what} would be removed" + (", and the queue" if verb == "rm" else ""))
            return OK
        plan = (
            f"remove queue {options.queue} with {what}"
            if verb == "rm"
            else f"remove {what} from {options.queue}"
        )
        if not confirm(options, plan):
            return NOT_CONFIRMED
    gone = ask(dry_run=False)
    if options.json:
        print_json(gone)
    else:
        print(
            f"{count_text(gone['messages'], 'message')} removed" + (", and the queue" if verb == "rm" else "")
        )
    return OK


def _pause(options: Namespace) -> int:
    return _pause_or_resume(options, "pause", "hands out nothing until `openq queue resume`")


def _resume(options: Namespace) -> int:
    return _pause_or_resume(options, "resume", "hands out messages again")


def _pause_or_resume(options: Namespace, verb: str, outcome: str) -> int:
    from .api import connect
    from .output import print_json

    queue = connect(options).post(f"{_path(options)}/{verb}")
    if options.json:
        print_json(queue)
    else:
        print(f"{options.queue} {outcome}")
    return OK
