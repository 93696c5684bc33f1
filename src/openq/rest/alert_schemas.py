"""The types of alerts in requests and replies."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType, field

from .schemas import Limit, QueryParameters, ReplyBody, RequestBody, Seconds, Word

Severity = Literal["info", "warning", "critical"]
AlertState = Literal["pending", "firing", "resolved"]
RuleText = Annotated[str, Meta(min_length=1, max_length=2000)]
LimitValue = Annotated[float, Meta(ge=-1e18, le=1e18)] | Annotated[str, Meta(max_length=40)]


class AlertItem(ReplyBody, kw_only=True):
    """An alert: what is wrong, since when, with figures, what to do and the command for it.

    `kind` is what the alert is about: queue, cursor, webhook, schedule, worker, server, store or total;
    `subject` is its name. `omitted` counts further subjects of the same rule beyond the limit.
    """

    id: str
    alert: str
    state: AlertState
    severity: Severity
    kind: str
    subject: str | None
    account: str | UnsetType = UNSET
    server: str | None
    summary: str
    action: str
    command: str
    runbook: str
    figures: dict[str, float]
    since: str
    fired: str | None
    resolved: str | None
    flapping: bool
    omitted: int
    silenced: str | None  # the id of the silence
    notified: dict[str, str]  # destination -> the time at which it accepted this state


class AlertList(ReplyBody, kw_only=True):
    """`evaluator` is the server that evaluates the alerts of queues; `evaluated` when this server did."""

    alerts: list[AlertItem]
    evaluator: str
    evaluated: str | None
    enabled: bool


class AlertQuery(QueryParameters, kw_only=True):
    state: Annotated[str, Meta(description="pending, firing, resolved, or active: both of the first")] = ""
    severity: Severity | None = None
    alert: Annotated[str, Meta(description="the name of a rule")] = ""


class AlertRuleView(ReplyBody, kw_only=True):
    """A rule as it is in force. `origin`: builtin, config (the file) or api. Times are in seconds."""

    name: str
    enabled: bool
    severity: Severity
    expression: str
    limits: dict[str, float]
    for_: float = field(name="for")
    keep: float
    queues: list[str]
    summary: str
    action: str
    command: str
    figures: dict[str, str]
    help: str
    runbook: str
    origin: Literal["builtin", "config", "api"]
    firing: int
    pending: int


class RuleList(ReplyBody, kw_only=True):
    rules: list[AlertRuleView]


class RuleChange(RequestBody, kw_only=True):
    """Fields that are not named stay as they are. A rule that is not built in needs expression and summary.

    A limit is a number, or a text with a unit such as 15m, 10% or 2GiB.
    """

    enabled: bool | None = None
    severity: Severity | None = None
    expression: RuleText | None = None
    limits: dict[str, LimitValue] | None = None
    for_: Seconds | None = field(default=None, name="for")
    keep: Seconds | None = None
    queues: list[Word] | None = None
    summary: RuleText | None = None
    action: RuleText | None = None
    command: RuleText | None = None
    figures: dict[str, str] | None = None

    def given(self) -> dict[str, Any]:
        names = ("enabled", "severity", "expression", "limits", "keep", "queues", "summary", "action")
        found = {name: getattr(self, name) for name in (*names, "command", "figures")}
        found["for"] = self.for_
        return {name: value for name, value in found.items() if value is not None}


class RuleId(ReplyBody, kw_only=True):
    id: str


class HistoryItem(ReplyBody, kw_only=True):
    time: str
    id: str
    alert: str
    state: AlertState
    severity: Severity
    kind: str
    subject: str | None
    server: str | None
    since: str
    summary: str


class AlertHistory(ReplyBody, kw_only=True):
    """The newest first; kept for 30 days, the last 2,000 at most."""

    entries: list[HistoryItem]


class HistoryQuery(QueryParameters, kw_only=True):
    limit: Limit = 100
    alert: Annotated[str, Meta(description="the name of a rule")] = ""


class NewSilence(RequestBody, kw_only=True):
    """No notifications of these alerts for `seconds`. `alert` and `subject` are patterns with * and ?."""

    alert: Annotated[str, Meta(min_length=1, max_length=100)] = "*"
    subject: Annotated[str, Meta(max_length=255)] = ""
    seconds: Annotated[float, Meta(gt=0, le=30 * 86_400)] = 3600.0
    reason: Annotated[str, Meta(max_length=500)] = ""


class SilenceView(ReplyBody, kw_only=True):
    id: str
    alert: str
    subject: str
    until: str
    created: str
    by: str
    reason: str


class SilenceList(ReplyBody, kw_only=True):
    silences: list[SilenceView]


class AlertTest(RequestBody, kw_only=True):
    """A sample of the rule `alert`, to one destination or to all."""

    alert: Annotated[str, Meta(min_length=1, max_length=100)] = "dead-letters"
    destination: Word | None = None


class TestOutcome(ReplyBody, kw_only=True):
    """`error` is null if the destination accepted it."""

    destination: str
    kind: str
    target: str
    ok: bool
    error: str | None


class TestReport(ReplyBody, kw_only=True):
    alert: str
    text: str
    outcomes: list[TestOutcome]


class DestinationView(ReplyBody, kw_only=True):
    """A destination of the configuration, without its secrets. Counts are those of this server."""

    name: str
    kind: str
    target: str
    severity: Severity
    rules: list[str]
    rate: str
    accepted: int
    failed: int
    last_accepted: str | None
    error: str | None


class DestinationList(ReplyBody, kw_only=True):
    destinations: list[DestinationView]
