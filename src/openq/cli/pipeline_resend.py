"""`openq pipeline redrive` and `openq pipeline replay`: dead letters back, and the past once more."""

from __future__ import annotations

from argparse import ArgumentTypeError
from contextlib import contextmanager

from .parser import CommandGroup, Parser, add_confirmation, add_json, rate
from .terminal import EMPTY, FAILED, OK, say, styled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any

    from ..pipeline.resend import ResendContext
    from ..pipeline.resend_plan import ResendPlan


def add(verbs: CommandGroup) -> None:
    _add_redrive(verbs)
    _add_replay(verbs)


def _add_redrive(verbs: CommandGroup) -> None:
    redrive = verbs.add(
        "redrive",
        _redrive,
        "send dead letters that match an SQL condition back to where they failed",
        [
            ("openq pipeline redrive orders-dead --dry-run", "how many, why they failed, some of them"),
            (
                "openq pipeline redrive orders-dead --where \"error_type = 'TimeoutError'\" --rate 50",
                "some of them, not too fast",
            ),
            (
                "openq pipeline redrive orders-dead --transform mend.py:mended --dry-run",
                "with another body; shows before and after",
            ),
            ("openq pipeline redrive --plan mend.json --yes", "go on with a redrive that was cut off"),
        ],
        "Columns of a letter: message_id, seq, ts (of its death), dlq_source, receive_count, error_type,\n"
        "error_signature, error_text, group, priority, size; of its publish: published, type, attributes,\n"
        "headers, body, body_json (body_json:order.total), replay_count and more. Ids stay; one that is\n"
        "changed has a new one, and openq.replay_of names the old. The audit has a line for every letter.",
    )
    redrive.add_argument("queue", nargs="?", metavar="QUEUE", help="the dead-letter queue")
    redrive.add_argument("--where", metavar="SQL", help="which letters (default: all)")
    redrive.add_argument("--to", metavar="QUEUE", help="another queue than where each one failed")
    redrive.add_argument(
        "--transform",
        metavar="SQL|FILE.py:NAME",
        help="another body: an expression, or a function of the letter as a dict; None leaves it there",
    )
    redrive.add_argument("--rate", metavar="N", type=rate, help="the most per second")
    redrive.add_argument("--audit", metavar="FILE", help="what became of each (default: beside the plan)")
    _add_rest(redrive)


def _add_replay(verbs: CommandGroup) -> None:
    replay = verbs.add(
        "replay",
        _replay,
        "publish messages of the past again, chosen by time, id or SQL",
        [
            (
                "openq pipeline replay --from orders --since 2h --to orders-again --dry-run",
                "how many it would be",
            ),
            (
                "openq pipeline replay --from 'shop-*' --where \"body_json:total > 100\" --to audit --yes",
                "by what is in them",
            ),
            ("openq pipeline replay --from orders --since 1d --to test --speed 10x", "a day in 2.4 hours"),
            ("openq pipeline replay --plan again.json --yes", "go on with a replay that was cut off"),
        ],
        "From journal and archive, in the original order. A copy has an id of its own; its attributes\n"
        "openq.replay_of and openq.replay_count say what it is. With one plan nothing is published twice.",
    )
    replay.add_argument("--from", metavar="QUEUE", dest="queues", action="append", help="a name or a pattern")
    replay.add_argument("--to", metavar="QUEUE", help="where they go: the same queue or another")
    replay.add_argument("--since", metavar="TIME", help="from this time on: 2h, 7d, or 2026-01-31T12:00:00Z")
    replay.add_argument("--until", metavar="TIME", help="before this time")
    replay.add_argument("--ids", metavar="FILE", help="only these, an id in each line")
    replay.add_argument(
        "--where", metavar="SQL", help="a condition on the columns of `messages`, and body_json"
    )
    replay.add_argument("--again", action="store_true", help="also what the same words have published before")
    replay.add_argument("--include-purged", action="store_true", help="also messages that a purge removed")
    replay.add_argument("--rate", metavar="N", type=rate, help="the most per second")
    replay.add_argument(
        "--speed", metavar="N", type=_speed, help="as they came, but so many times as fast: 1, 10x"
    )
    _add_rest(replay)


def _add_rest(parser: Parser) -> None:
    from .pipeline import add_history, add_spark

    parser.add_argument(
        "--plan",
        metavar="FILE",
        help="what is to be done and how far it is; one that is there is gone on with (default: a new one "
        "in ./openq-pipelines)",
    )
    add_confirmation(parser)
    add_json(parser)
    add_history(parser)
    add_spark(parser)


def _speed(text: str) -> float:
    try:
        return rate(text.removesuffix("x"))
    except ArgumentTypeError:
        raise ArgumentTypeError(f"a speed is a factor such as 1, 0.5 or 10x, not {text!r}") from None


# -- what they share ---------------------------------------------------------------------------------------


def _resend_context(options: Namespace) -> ResendContext:
    """Where to read, and the server that acts: what is not named is the server of this machine."""

    from ..pipeline.resend import ResendContext
    from .api import token_of, url_of
    from .pipeline import require_data, trust_ca

    trust_ca(options)
    url: str | None = url_of(options)
    if options.dry_run and (options.data or options.archive) and not options.url:
        url = None  # nobody has to be there for a look at files
        if options.data:
            require_data(options.data)
    return ResendContext(options.data, url, token_of(options), options.archive)


@contextmanager
def _resumable(plan: ResendPlan, verb: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        say(f"stopped; `openq pipeline {verb} --plan {plan.path} --yes` goes on")
        raise
    except Exception:
        if plan.done:
            say(f"what is done is done; `openq pipeline {verb} --plan {plan.path} --yes` goes on")
        raise


def _stop_before_run(
    options: Namespace,
    chosen: Any,
    facts: Callable[[Any], dict[str, Any]],
    show: Callable[[Any], None],
    what: str,
    question: str,
) -> int | None:
    """The exit code, where nothing is carried out: a dry run, nothing to do, or not agreed to."""
    from .output import NOT_CONFIRMED, confirm, print_json

    plan, left = chosen.plan, chosen.left
    if options.dry_run:
        if options.json:
            print_json(facts(chosen))
        else:
            show(chosen)
        if chosen.is_new:
            _save_named_plan(options, plan)
        return OK if left else EMPTY
    if chosen.is_new and not plan.total:
        say(f"there is nothing to do: no {what} matches")
        return EMPTY
    return NOT_CONFIRMED if left and not confirm(options, question) else None


def _run_with_progress(
    verb: str, title: str, plan: ResendPlan, work: Callable[[Callable[[int, int], None]], Any]
) -> Any:
    from .progress import ProgressBar

    shown = ProgressBar(title, plan.total)
    try:
        with _resumable(plan, verb):
            return work(lambda done, _: shown.update(done))
    finally:
        shown.end()


def _save_named_plan(options: Namespace, plan: ResendPlan) -> None:
    """A plan that somebody named is kept by a dry run too: to do exactly that, later."""
    if options.plan:
        with plan.locked():
            plan.save()
        say(f"the plan is {plan.path}; run the same with --plan, and without --dry-run, to carry it out")


# -- redrive -----------------------------------------------------------------------------------------------


def _redrive(options: Namespace) -> int:
    from ..pipeline.redrive import choose, run
    from .api import UsageError
    from .output import count_text, print_json
    from .pipeline import spark_factory

    if options.queue is None and options.plan is None:
        raise UsageError("which dead-letter queue? See `openq dlq ls`")
    with _resend_context(options) as context:
        spark = spark_factory(options)
        chosen = choose(
            spark,
            context,
            options.queue,
            where=options.where,
            to=options.to,
            transform=options.transform,
            rate=options.rate,
            plan=options.plan,
            samples=3 if options.dry_run else 0,
        )
        plan, left = chosen.plan, chosen.left
        how = ", changed," if plan.asked["transform"] else ""
        question = (
            f"send {count_text(left, 'letter')} of {plan.asked['queue']}{how} {_destination_text(plan)}"
        )
        ended = _stop_before_run(options, chosen, _redrive_json, _show_redrive, "dead letter", question)
        if ended is not None:
            return ended
        done = _run_with_progress(
            "redrive",
            f"redrive {plan.asked['queue']}",
            plan,
            lambda told: run(spark, context, chosen, told, options.audit),
        )
    if options.json:
        print_json(
            {"plan": str(plan.path), "id": plan.id, "total": plan.total, "outcomes": done.outcomes}
            | {"audit": None if done.audit is None else str(done.audit)}
        )
    else:
        said = ", ".join(f"{number} {name}" for name, number in sorted(done.outcomes.items()))
        print(f"redrive: {said or 'nothing to do'}{'' if left else ' (it was done before)'}")
        print(f"{styled('audit', 'dim')}  {done.audit}")
    return OK if done.is_clean else FAILED


def _redrive_json(chosen: Any) -> dict[str, Any]:
    return {
        "total": chosen.plan.total,
        "left": chosen.left,
        "groups": [
            {"source": each.source, "signature": each.signature, "count": each.count, "ids": list(each.ids)}
            for each in chosen.groups
        ],
        "samples": list(chosen.samples),
    }


def _show_redrive(chosen: Any) -> None:
    from .output import count_text, escape_control, print_table

    plan = chosen.plan
    if chosen.groups:
        print_table(
            ["letters", "from", "why", "for example"],
            [
                [each.count, each.source, _shorten(each.signature or "(no reason given)"), each.ids[0]]
                for each in chosen.groups[:20]
            ],
            right=["letters"],
        )
        if len(chosen.groups) > 20:
            say(f"and {len(chosen.groups) - 20} more reasons")
        print()
    for each in chosen.samples[:10]:
        print(f"{escape_control(each['id'])}  {escape_control(_shorten(each['error'] or '', 100))}")
        print(
            styled(
                f"  {escape_control(_shorten(each['body'] or '(not in the history any more)', 100))}", "dim"
            )
        )
        if plan.asked["transform"]:
            print(f"  {escape_control(_shorten(each['new_body'] or each['problem'] or '', 100))}")
    letters = f"{count_text(chosen.left, 'letter')} of {plan.asked['queue']}"
    print(f"dry run: this would send {letters} {_destination_text(plan)}")


def _destination_text(plan: ResendPlan) -> str:
    return f"to {plan.asked['to']}" if plan.asked["to"] else "back to where they failed"


def _shorten(text: str, longest: int = 70) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


# -- replay ------------------------------------------------------------------------------------------------


def _replay(options: Namespace) -> int:
    from ..pipeline.replay import choose, run
    from .api import UsageError
    from .output import count_text, print_json
    from .pipeline import spark_factory

    if options.plan is None and not options.queues:
        raise UsageError("from which queue? Give --from, or --plan to go on with a plan")
    ids = None if options.ids is None else _read_ids(options.ids)
    with _resend_context(options) as context:
        plan_path = options.plan
        if plan_path is None and not options.dry_run and not options.again:
            plan_path = _default_plan_path(options, context.url, ids)
        spark = spark_factory(options)
        chosen = choose(
            spark,
            context,
            options.queues,
            options.to,
            since=options.since,
            until=options.until,
            ids=ids,
            where=options.where,
            rate=options.rate,
            speed=options.speed,
            include_purged=options.include_purged,
            plan=plan_path,
        )
        plan, left = chosen.plan, chosen.left
        question = f"publish {count_text(left, 'message')} again to {plan.asked['to']}"
        ended = _stop_before_run(options, chosen, _replay_json, _show_replay, "message", question)
        if ended is not None:
            return ended
        done = _run_with_progress(
            "replay",
            f"replay to {plan.asked['to']}",
            plan,
            lambda told: run(spark, context, plan, told),
        )
    if options.json:
        print_json(
            {"plan": str(plan.path), "id": plan.id, "total": plan.total, "sent": done.sent}
            | {"repeated": done.repeated}
        )
    elif not left:
        print(
            f"replay: nothing to do, all {count_text(plan.total, 'message')} were published before; "
            "--again publishes them once more"
        )
        print(f"{styled('plan', 'dim')}  {plan.path}")
    else:
        print(f"replay: {count_text(done.sent, 'message')} published to {plan.asked['to']}")
        print(f"{styled('plan', 'dim')}  {plan.path}")
    return OK


def _default_plan_path(options: Namespace, url: str | None, ids: list[str] | None) -> Path:
    """The plan of a replay that was asked for in the same words: run twice, it goes once."""
    from hashlib import sha256
    from json import dumps
    from pathlib import Path

    from ..pipeline.resend_plan import FOLDER

    words = [url, options.data, options.queues, options.to, options.since, options.until, ids, options.where]
    words += [options.rate, options.speed]
    return Path(FOLDER, f"replay-{sha256(dumps(words).encode()).hexdigest()[:12]}.json")


def _read_ids(path: str) -> list[str]:
    from .api import UsageError

    with open(path, encoding="utf-8") as file:
        try:
            ids = list(dict.fromkeys(line.strip() for line in file if line.strip()))
        except UnicodeDecodeError:
            raise UsageError(f"{path} is no text: an id in each line is wanted") from None
    if not ids:
        raise UsageError(f"there are no ids in {path}: one in each line is wanted")
    return ids


def _replay_json(chosen: Any) -> dict[str, Any]:
    from ..client.times import from_ms, iso

    return {
        "total": chosen.plan.total,
        "left": chosen.left,
        "slices": len(chosen.plan.slices),
        "to": chosen.plan.asked["to"],
        "queues": [
            {
                "queue": each.queue,
                "count": each.count,
                "bytes": each.bytes,
                "first": iso(from_ms(each.first_us // 1000)),
                "last": iso(from_ms(each.last_us // 1000)),
            }
            for each in chosen.groups
        ],
    }


def _show_replay(chosen: Any) -> None:
    from ..pipeline.report import moment
    from .output import count_text, print_table
    from .terminal import size_text

    if chosen.groups:
        print_table(
            ["queue", "messages", "bytes", "first", "last"],
            [
                [each.queue, each.count, size_text(each.bytes), moment(each.first_us), moment(each.last_us)]
                for each in chosen.groups
            ],
            right=["messages", "bytes"],
        )
        print()
    plan = chosen.plan
    print(f"dry run: this would publish {count_text(chosen.left, 'message')} again to {plan.asked['to']}")
