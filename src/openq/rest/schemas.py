"""The types of requests and replies: for decoding, validation, encoding and /openapi.json.

Names and units are those of the library: durations in seconds, times as ISO-8601 in UTC. A request with an
unknown field is rejected, so that misspelt fields are noticed.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct

from ..documents.structs import MAX_BATCH as MAX_BATCH
from ..documents.structs import Count as Count
from ..documents.structs import Limit as Limit
from ..documents.structs import Moment as Moment
from ..documents.structs import Name as Name
from ..documents.structs import ReplyBody as ReplyBody
from ..documents.structs import RequestBody as RequestBody
from ..documents.structs import Seconds as Seconds
from ..documents.structs import Size as Size
from ..documents.structs import Word as Word
from ..limits import MAX_COUNT
from ..settings import SETTINGS, Kind, Setting

MAX_WAIT_S = 60

State = Literal["ready", "delayed", "in_flight", "all"]


class QueryParameters(Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of a request."""

    MAY_OMIT_QUEUE: ClassVar[bool] = False  # of scope "query": without a queue the handler checks


class NoQuery(QueryParameters, kw_only=True):
    pass


# -- queues -------------------------------------------------------------------------------------


class Retry(RequestBody, kw_only=True):
    """How long a message waits after a failed delivery. `on_expiry`: after a lease that ended, too."""

    kind: Literal["none", "fixed", "exponential"] = "exponential"
    base: Seconds = 1.0
    max: Seconds = 3600.0
    factor: Annotated[float, Meta(ge=1, le=1000)] = 2.0
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.0
    on_expiry: bool = True


RateText = Annotated[str, Meta(description='a token bucket: "100/s", "100/m", "6000/h", "100/m burst 20"')]


class KeyLimit(RequestBody, kw_only=True):
    """Limits of one key. A limit that is not named is that of all keys; `null` is no limit."""

    concurrency: Annotated[int, Meta(ge=1, le=MAX_COUNT)] | UnsetType | None = UNSET
    rate: RateText | UnsetType | None = UNSET


_LITERAL: Any = Literal  # for choices that a type checker does not see


def _given(setting: Setting) -> Any:
    """The type of a setting in a request."""
    kinds: dict[Kind, Any] = {
        "duration": Seconds if setting.name != "retention" else Annotated[float, Meta(gt=0)],
        "count": Annotated[int, Meta(ge=setting.minimum, le=setting.maximum)],
        "bytes": Size,
        "flag": bool,
        "text": str,
        "choice": _LITERAL[setting.choices],
        "queue": Name,
        "exchange": Name,
        "retry": Retry | _LITERAL[setting.choices],
        "rate": RateText,
        "key_limits": dict[str, KeyLimit],
    }
    return kinds[setting.kind] | UnsetType | (None if setting.is_optional else UnsetType)


_SHOWN: dict[Kind, Any] = {
    "duration": float,
    "count": int,
    "bytes": int,
    "flag": bool,
    "text": str,
    "choice": str,
    "queue": str,
    "exchange": str,
    "retry": Retry,
    "rate": str,
    "key_limits": dict[str, dict[str, int | str | None]],
}


def _shown(setting: Setting) -> Any:
    """The type of a setting in a reply."""
    kind = _SHOWN[setting.kind]
    return kind | None if setting.is_optional and setting.kind != "retry" else kind


QueueChange: Any = defstruct(
    "QueueChange",
    [(setting.name, _given(setting), UNSET) for setting in SETTINGS],
    bases=(RequestBody,),
    namespace={
        "__doc__": """Settings by the names of the library. Settings that are not named keep their values.

    `null` as `retention` or `history` keeps messages for ever.
    """
    },
    kw_only=True,
    module=__name__,
)
NewQueue: Any = defstruct("NewQueue", [("name", Name)], bases=(QueueChange,), kw_only=True, module=__name__)
Settings: Any = defstruct(
    "Settings",
    [(setting.name, _shown(setting)) for setting in SETTINGS],
    bases=(ReplyBody,),
    kw_only=True,
    module=__name__,
)


class Stats(ReplyBody, kw_only=True):
    ready: int
    delayed: int
    in_flight: int
    waiting_bytes: int
    oldest_age: float | None
    waiters: int
    limited: int
    counters: dict[str, int]


class QueueView(ReplyBody, kw_only=True):
    name: str
    settings: Settings
    stats: Stats
    created: bool | UnsetType = UNSET


class QueueList(ReplyBody, kw_only=True):
    queues: list[QueueView]
    next: str | UnsetType = UNSET  # as `after` of the next request


class QueueListing(QueryParameters, kw_only=True):
    prefix: str = ""
    limit: Limit = 100
    after: str = ""


class QueuePut(QueryParameters, kw_only=True):
    if_absent: bool = False


class QueueDeletion(QueryParameters, kw_only=True):
    if_empty: bool = False
    if_unused: bool = False
    dry_run: bool = False


class DryRun(QueryParameters, kw_only=True):
    dry_run: bool = False


class Removing(DryRun, kw_only=True):
    undo: Annotated[bool, Meta(description="keep the messages for ten minutes, so that it can be undone")] = (
        False
    )


class RemovedMessages(ReplyBody, kw_only=True):
    messages: int
    dry_run: bool = False
    # With `undo`: the id for POST queues/{queue}/undo/{id}. None: there were too many, or none.
    undo: str | UnsetType | None = UNSET
    undo_until: str | UnsetType = UNSET


class Lease(ReplyBody, kw_only=True):
    id: str
    consumer: str | None
    since: str
    deadline: str | None
    receive_count: int


class Leases(ReplyBody, kw_only=True):
    messages: list[Lease]
    total: int


class Limited(QueryParameters, kw_only=True):
    limit: Limit = 100
