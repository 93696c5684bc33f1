"""`openq pipeline redrive` and `openq pipeline replay`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from json import dumps
from pathlib import Path
from typing import Any

from ..client.times import from_ms, iso
from ..pipeline.redrive import choose as choose_dead_letters
from ..pipeline.redrive import run as run_redrive
from ..pipeline.replay import choose as choose_messages
from ..pipeline.replay import run as run_replay
from ..pipeline.report import moment
from ..pipeline.resend import ResendContext
from ..pipeline.resend_plan import FOLDER, ResendPlan
from .api import UsageError, token_of, url_of
from .output import NOT_CONFIRMED, confirm, count_text, escape_control, print_json, print_table, shorten
from .pipeline import require_data, spark_factory, trust_ca
from .progress import ProgressBar
from .terminal import EMPTY, FAILED, OK, say, size_text, styled


def _resend_context(options: Namespace) -> ResendContext:
    """The history to read, and the server that publishes (default: the one on this machine)."""
    trust_ca(options)
    url: str | None = url_of(options)
    if options.dry_run and (options.data or options.archive) and not options.url:
        url = None  # a dry run over files needs no server
        if options.data:
            require_data(options.data)
    return ResendContext(options.data, url, token_of(options), options.archive)


@contextmanager
def _resumable(plan: ResendPlan, verb: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        say(f"stopped; `openq pipeline {verb} --plan {plan.path} --yes` resumes it")
        raise
    except Exception:
        if plan.done:
            say(f"incomplete; `openq pipeline {verb} --plan {plan.path} --yes` resumes it")
        raise


def _stop_before_run(
    options: Namespace,
    chosen: Any,
    facts: Callable[[Any], dict[str, Any]],
    show: Callable[[Any], None],
    what: str,
    question: str,
) -> int | None:
    """The exit code if nothing is to be run: a dry run, nothing to do, or not confirmed."""
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
        say(f"nothing to do: no {what} matches")
        return EMPTY
    return NOT_CONFIRMED if left and not confirm(options, question) else None


def _run_with_progress(
    verb: str, title: str, plan: ResendPlan, work: Callable[[Callable[[int, int], None]], Any]
) -> Any:
    shown = ProgressBar(title, plan.total)
    try:
        with _resumable(plan, verb):
            return work(lambda done, _: shown.update(done))
    finally:
        shown.end()


def _save_named_plan(options: Namespace, plan: ResendPlan) -> None:
    """A dry run with --plan keeps the plan, so that exactly that can be run later."""
    if options.plan:
        with plan.locked():
            plan.save()
        say(f"the plan is {plan.path}; run the same command with --plan, without --dry-run, to execute it")


# -- redrive -----------------------------------------------------------------------------------------------


def redrive(options: Namespace) -> int:
    if options.queue is None and options.plan is None:
        raise UsageError("give a dead-letter queue; see `openq dlq ls`")
    with _resend_context(options) as context:
        spark = spark_factory(options)
        chosen = choose_dead_letters(
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
            f"send {count_text(left, 'dead letter')} of {plan.asked['queue']}{how} {_destination_text(plan)}"
        )
        ended = _stop_before_run(options, chosen, _redrive_json, _show_redrive, "dead letter", question)
        if ended is not None:
            return ended
        done = _run_with_progress(
            "redrive",
            f"redrive {plan.asked['queue']}",
            plan,
            lambda progress: run_redrive(spark, context, chosen, progress, options.audit),
        )
    if options.json:
        print_json(
            {"plan": str(plan.path), "id": plan.id, "total": plan.total, "outcomes": done.outcomes}
            | {"audit": None if done.audit is None else str(done.audit)}
        )
    else:
        said = ", ".join(f"{number} {name}" for name, number in sorted(done.outcomes.items()))
        print(f"redrive: {said or 'nothing to do'}{'' if left else ' (it was complete already)'}")
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
    plan = chosen.plan
    if chosen.groups:
        print_table(
            ["count", "from", "reason", "example"],
            [
                [each.count, each.source, shorten(each.signature or "(no reason)"), each.ids[0]]
                for each in chosen.groups[:20]
            ],
            right=["count"],
        )
        if len(chosen.groups) > 20:
            say(f"and {len(chosen.groups) - 20} more reasons")
        print()
    for each in chosen.samples[:10]:
        print(f"{escape_control(each['id'])}  {escape_control(shorten(each['error'] or '', 100))}")
        print(
            styled(f"  {escape_control(shorten(each['body'] or '(no longer in the history)', 100))}", "dim")
        )
        if plan.asked["transform"]:
            print(f"  {escape_control(shorten(each['new_body'] or each['problem'] or '', 100))}")
    letters = f"{count_text(chosen.left, 'dead letter')} of {plan.asked['queue']}"
    print(f"dry run: this would send {letters} {_destination_text(plan)}")


def _destination_text(plan: ResendPlan) -> str:
    return f"to {plan.asked['to']}" if plan.asked["to"] else "back to the queues they came from"


# -- replay ------------------------------------------------------------------------------------------------


def replay(options: Namespace) -> int:
    if options.plan is None and not options.queues:
        raise UsageError("give --from QUEUE, or --plan FILE to resume a plan")
    ids = None if options.ids is None else _read_ids(options.ids)
    with _resend_context(options) as context:
        plan_path = options.plan
        if plan_path is None and not options.dry_run and not options.again:
            plan_path = default_plan_path(options, context.url, ids)
        spark = spark_factory(options)
        chosen = choose_messages(
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
            lambda progress: run_replay(spark, context, plan, progress),
        )
    if options.json:
        print_json(
            {"plan": str(plan.path), "id": plan.id, "total": plan.total, "sent": done.sent}
            | {"repeated": done.repeated}
        )
    elif not left:
        print(
            f"replay: nothing to do, all {count_text(plan.total, 'message')} were published before; "
            "--again publishes them again"
        )
        print(f"{styled('plan', 'dim')}  {plan.path}")
    else:
        print(f"replay: {count_text(done.sent, 'message')} published to {plan.asked['to']}")
        print(f"{styled('plan', 'dim')}  {plan.path}")
    return OK


def default_plan_path(options: Namespace, url: str | None, ids: list[str] | None) -> Path:
    """The plan of a replay with the same arguments: it is run only once."""
    words = [url, options.data, options.queues, options.to, options.since, options.until, ids, options.where]
    words += [options.rate, options.speed]
    return Path(FOLDER, f"replay-{sha256(dumps(words).encode()).hexdigest()[:12]}.json")


def _read_ids(path: str) -> list[str]:
    with open(path, encoding="utf-8") as file:
        try:
            ids = list(dict.fromkeys(line.strip() for line in file if line.strip()))
        except UnicodeDecodeError:
            raise UsageError(f"{path} is not a text file with one id per line") from None
    if not ids:
        raise UsageError(f"{path} contains no ids; one id per line is expected")
    return ids


def _replay_json(chosen: Any) -> dict[str, Any]:
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
