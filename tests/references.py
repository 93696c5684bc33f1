"""SETTINGS.md, METRICS.md, ERRORS.md and ALERT_RULES.md in docs/, made by `python -m tests.references`."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path

from openq import errors
from openq.alert_rules.builtin import BUILTIN
from openq.alert_rules.expression import UNITS
from openq.alert_rules.rule import FORMATS, AlertRule
from openq.alert_rules.signals import SINGLE_SIGNALS, SUBJECT_SIGNALS
from openq.rest.problems import PROBLEMS
from openq.server.queue_metrics import COUNTER_METRICS, QUEUE_COUNTER_METRICS
from openq.settings import SETTINGS as QUEUE_SETTINGS
from tests.isolation import ROOT

SOURCE = ROOT / "src" / "openq"
SETTINGS = ROOT / "docs" / "SETTINGS.md"
METRICS = ROOT / "docs" / "METRICS.md"
ERRORS = ROOT / "docs" / "ERRORS.md"
ALERT_RULES = ROOT / "docs" / "ALERT_RULES.md"
MADE = "Made by `python -m tests.references`: change the code, not this file.\n"


def settings() -> str:
    lines = [
        "# Settings of a queue\n",
        MADE,
        "One name everywhere: a keyword of the library (`OpenQ(..., max_length=100)`), a field of the REST",
        "API, a key of a `[queues.NAME]` table in `openq.toml`, a flag of `openq queue create`, and an",
        "environment variable for new queues of the library. Durations are seconds, or texts such as",
        "`500ms` and `5m`. The settings of the server are in [CLI.md](CLI.md).\n",
        "| setting | type | library | command line | environment | meaning |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for each in QUEUE_SETTINGS:
        kind = f"{each.kind} or null" if each.is_optional else each.kind
        flag = f"`--{each.name.replace('_', '-')}`" if each.in_cli else ""
        keyword = f"`{each.name}`" if each.in_library or each.name == "dlq" else ""
        variable = f"`{each.variable}`" if each.in_library else ""
        lines.append(f"| `{each.name}` | {kind} | {keyword} | {flag} | {variable} | {each.help} |")
    return "\n".join(lines) + "\n"


def metrics() -> str:
    lines = [
        "# Metrics\n",
        MADE,
        "`GET /metrics` answers in the text format of Prometheus, or in that of OpenMetrics if the request",
        "accepts `application/openmetrics-text`. It has sums over all queues; deleted queues stay counted.",
        "Times are in seconds. [OPERATING.md](OPERATING.md#metrics) says how to use them.\n",
        *_table(each for each in _all_families() if not _is_of_queue(each[0])),
        "",
        "## Metrics of each queue\n",
        "`GET /metrics/queues?match=orders-*&limit=1000` has a series for each queue, with the labels",
        "`account` and `queue`. `match` is a pattern with `*` and `?`; `limit` is at most 10,000, and 1,000",
        "by default. Queues are shown in the order of their names, up to the limit;",
        "`openq_queue_series_omitted` counts the others. The names differ from those of the sums, so",
        "scraping both pages counts nothing twice.\n",
        *_table(each for each in _all_families() if _is_of_queue(each[0])),
    ]
    return "\n".join(lines) + "\n"


def _table(families: Iterable[tuple[str, str, str]]) -> list[str]:
    rows = [f"| `{name}` | {kind} | {text} |" for name, kind, text in families]
    return ["| metric | type | meaning |", "| --- | --- | --- |", *rows]


def _is_of_queue(name: str) -> bool:
    return name.startswith("openq_queue_")


def _all_families() -> list[tuple[str, str, str]]:
    found = {each for path in SOURCE.rglob("*.py") for each in _families(path)}
    for metrics in (COUNTER_METRICS, QUEUE_COUNTER_METRICS):
        found |= {(name, "counter", text) for name, text in metrics.values()}
    return sorted(found)


def _families(path: Path) -> Iterator[tuple[str, str, str]]:
    """Metrics stand in the source as `Family(name, kind, help, ...)` and the like, or as pairs
    (counter, help).
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            texts = [each.value for each in node.args if isinstance(each, ast.Constant)]
            if node.func.id in ("Family", "QueueColumn") and len(texts) >= 3:
                yield str(texts[0]), str(texts[1]), str(texts[2])
            elif node.func.id == "_summary" and len(texts) >= 2:
                yield str(texts[0]), "summary", str(texts[1])
        elif isinstance(node, ast.Tuple) and len(node.elts) == 2:
            pair = [each.value for each in node.elts if isinstance(each, ast.Constant)]
            if len(pair) == 2 and str(pair[0]).startswith("openq_") and str(pair[0]).endswith("_total"):
                yield str(pair[0]), "counter", str(pair[1])


def error_codes() -> str:
    lines = [
        "# Errors\n",
        MADE,
        "Every error of the library is an `OpenQError` with a stable `code`. The REST API answers with the",
        "same codes, in a problem document (RFC 9457) with a `hint`. SQS and AMQP clients get the errors of",
        "AWS and RabbitMQ.\n",
        "## Exceptions of the library\n",
        "| exception | code | meaning |",
        "| --- | --- | --- |",
    ]
    classes = [
        each
        for _, each in inspect.getmembers(errors, inspect.isclass)
        if issubclass(each, errors.OpenQError) and each.__module__ == errors.__name__
    ]
    for each in sorted(classes, key=lambda each: (each.code, each.__name__)):
        text = (each.__doc__ or "").strip().split("\n\n")[0].replace("\n    ", " ")
        lines.append(f"| `{each.__name__}` | `{each.code}` | {text} |")
    lines += [
        "",
        "## Codes of the REST API\n",
        "| code | status | title | hint |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| `{code}` | {status} | {title} | {hint} |" for code, (status, title, hint) in PROBLEMS.items()
    ]
    return "\n".join(lines) + "\n"


# Limits that are no bare numbers, by their names in all rules; the largest unit first.
_TIMES = ("h", "m", "s", "ms")
_LIMIT_UNITS = {
    **dict.fromkeys(("window", "age", "forget", "ahead", "seconds"), _TIMES),
    "free": ("GiB", "MiB"),
    "share": ("%",),
}


def alert_rules() -> str:
    lines = [
        "# Alert rules and signals\n",
        MADE,
        "The rules that every server has, and the signals that an expression can name.",
        "[ALERTS.md](ALERTS.md) says how to change them and how to write your own.\n",
        "## Rules\n",
        "| rule | fires when | severity | holds for | limits |",
        "| --- | --- | --- | --- | --- |",
    ]
    for rule in BUILTIN:
        held = FORMATS["duration"](rule.for_s) if rule.for_s else "at once"
        link = f"[{rule.name}]({rule.runbook})"
        lines.append(f"| {link} | {rule.help} | {rule.severity} | {held} | {_limits(rule)} |")
    lines += ["", "Their conditions:\n", "| rule | expression |", "| --- | --- |"]
    lines += [f"| `{rule.name}` | `{rule.expression}` |" for rule in BUILTIN]
    lines += ["", "## Signals\n"]
    lines += [
        "A counter stands in `increase` and `rate`, a gauge alone or in `avg`, `min`, `max`, `slope`,",
        "`forecast` and `time_until`. Times are in seconds, shares are 0 to 1. Every metric of",
        "[METRICS.md](METRICS.md) is a signal of the server, too: the sum over its labels.\n",
        "| signal | type | meaning |",
        "| --- | --- | --- |",
    ]
    for kind, signals in {**SUBJECT_SIGNALS, **SINGLE_SIGNALS}.items():
        for name, signal in signals.items():
            type_ = "counter" if signal.is_counter else "gauge"
            lines.append(f"| `{kind}.{name}` | {type_} | {signal.help} |")
    return "\n".join(lines) + "\n"


def _limits(rule: AlertRule) -> str:
    """As `openq alert set` and `openq.toml` take them."""
    return ", ".join(f"`{name}={limit_text(name, value)}`" for name, value in rule.limits.items())


def limit_text(name: str, value: float) -> str:
    for unit in _LIMIT_UNITS.get(name, ()):
        number = round(value / UNITS[unit], 9)
        if number >= 1 and number == int(number):
            return f"{number:g}{unit}"
    return f"{value:g}"


if __name__ == "__main__":
    SETTINGS.write_text(settings())
    METRICS.write_text(metrics())
    ERRORS.write_text(error_codes())
    ALERT_RULES.write_text(alert_rules())
