"""The built-in history: counts of a queue, or of all queues together, over time."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import UNSET, Meta, UnsetType, field

from ..broker.series import MAX_POINTS, NAMES, SUMS
from ..documents.structs import ReplyBody
from ..documents.values import moment_ms, read_moment
from ..names import DEFAULT_ACCOUNT
from .call import RestCall
from .problems import Problem
from .routes import route
from .schemas import QueryParameters

DEFAULT_SPAN_S = 3_600
MAX_STEP_S = 86_400


_NAMES = f"names, separated by commas: {', '.join(NAMES)}; default: all"
_VISIBLE = "instead of a queue: the busiest queues, of those that the caller may peek, together"
_STEP = Meta(ge=1, le=MAX_STEP_S, description="seconds; default: about 100 points")


class SeriesQuery(QueryParameters, kw_only=True):
    MAY_OMIT_QUEUE: ClassVar[bool] = True

    queue: Annotated[str, Meta(description="empty: all queues together, for administrators")] = ""
    visible: Annotated[bool, Meta(description=_VISIBLE)] = False
    name: Annotated[str, Meta(description=_NAMES)] = ""
    from_: Annotated[str | None, Meta(description="ISO-8601 or epoch seconds; default: an hour ago")] = field(
        default=None, name="from"
    )
    to: Annotated[str | None, Meta(description="likewise; default: now")] = None
    step: Annotated[int, _STEP] | None = None


class SeriesView(ReplyBody, kw_only=True):
    """Values at `times`, the starts of steps of `step` seconds.

    Counts are sums over a step, `ready`, `delayed` and `in_flight` are those at its end, `oldest_age` is the
    maximum and `wait` and `publish_to_ack` are averages, in seconds. A value is null where nothing is known.
    `recorded` is false if the queue has no series of its own: it was not among the busiest. With `visible`,
    `queues` says how many queues are added up.
    """

    queue: str | None
    queues: int | UnsetType = UNSET
    step: int
    recorded: bool
    sums: list[str]
    times: list[int]
    values: dict[str, list[float | None]]


@route(
    "GET",
    "series",
    permission="peek",
    scope="query",
    sqs_actions=("GetQueueAttributes",),
    summary="Counts over time: of a queue, of those that the caller may see, or of all for administrators",
    query=SeriesQuery,
    reply=SeriesView,
)
def show_series(call: RestCall) -> None:
    query, context = call.query, call.context
    names = _names(query.name)
    now_s = context.now_ms() // 1000
    to_s = now_s + 1 if query.to is None else _seconds(query.to, "to")
    from_s = to_s - DEFAULT_SPAN_S if query.from_ is None else _seconds(query.from_, "from")
    if from_s > to_s:
        raise Problem("invalid", "from is after to")
    if query.step is not None and (min(to_s, now_s) - from_s) / query.step > MAX_POINTS:
        raise Problem("invalid", f"more than {MAX_POINTS} points: use a larger step")
    key = ""
    if query.visible:
        if query.queue:
            raise Problem("invalid", "give either queue or visible")
    elif query.queue:
        key = call.qualified(query.queue)
        call.broker.get_queue(key)
    elif not context.guard.may(call.principal, "admin", DEFAULT_ACCOUNT, None):
        raise Problem("forbidden", "the counts of all queues together need the permission admin")
    reader = context.series.reader

    def may_see(name: str) -> bool:
        # A queue that is gone has no policy any more that could deny it.
        return call.is_own(name) and find_queue(name) is not None and call.may("peek", call.short_name(name))

    find_queue = call.broker.find_queue

    def work() -> SeriesView:
        queues: int | UnsetType = UNSET
        if query.visible:
            queues, found = reader.read_sum(may_see, from_s, to_s, query.step, now_s)
        else:
            found = reader.read(key, from_s, to_s, query.step, now_s)
        times = [] if found is None else [found.start_s + found.step_s * at for at in range(len(found.rows))]
        return SeriesView(
            queue=query.queue or None,
            queues=queues,
            step=(query.step or 1) if found is None else found.step_s,
            recorded=found is not None,
            sums=[name for name in names if name in SUMS],
            times=times,
            values={name: [] if found is None else found.column(name) for name in names},
        )

    call.seek(work)


def _seconds(text: str, name: str) -> int:
    return moment_ms(read_moment(text), name) // 1000


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()] or list(NAMES)
    for name in names:
        if name not in NAMES:
            raise Problem("invalid", f"unknown name {name[:40]!r}; there are {', '.join(NAMES)}")
    return list(dict.fromkeys(names))
