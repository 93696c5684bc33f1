"""The options of `format("openq")`: their names, values and combinations.

Spark passes options as texts with case-insensitive names. An unknown name is an error: a misspelled `queues`
would read everything.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..client.times import moment_ms, parse_iso
from ..config import ConfigError, secret
from ..errors import InvalidSetting

if TYPE_CHECKING:
    from ..history.selection import Selection

READ, STREAM, WRITE = "read", "readStream", "write"

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SECONDS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
DEFAULT_PARTITION_BYTES = 128 << 20
MAX_LISTED = 100_000

# Options that Spark itself adds to a source or sink.
_SPARK_OPTIONS = {"checkpointlocation", "queryname", "path", "outputmode"}


def read_text(text: str, name: str) -> str:
    if not text.strip():
        raise InvalidSetting(f"{name} must not be empty")
    return text.strip()


def read_flag(text: str, name: str) -> bool:
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.strip().lower() not in known:
        raise InvalidSetting(f"{name} must be true or false, not {text!r}")
    return known[text.strip().lower()]


def read_number(text: str, name: str) -> int:
    try:
        number = int(text.strip())
    except ValueError:
        number = -1
    if number < 0 or number >= 1 << 63:
        raise InvalidSetting(f"{name} must be an integer, 0 or more, not {text!r}")
    return number


def read_count(text: str, name: str) -> int:
    number = read_number(text, name)
    if number == 0:
        raise InvalidSetting(f"{name} must be 1 or more, not 0")
    return number


def read_bytes(text: str, name: str) -> int:
    """A size: 134217728, 128m, 128 MiB, 1g."""
    found = re.fullmatch(r"(\d+)\s*([kmgt]?)(i?b)?", text.strip().lower())
    if not found or int(found[1]) == 0:
        raise InvalidSetting(f"{name} must be a size such as 134217728, 128m or 1g, not {text!r}")
    return int(found[1]) * _UNITS[found[2]]


def read_seconds(text: str, name: str) -> float:
    """A duration: 30, 30s, 500ms, 5m, 1h."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d|)", text.strip().lower())
    if not found:
        raise InvalidSetting(f"{name} must be a duration such as 30s, 500ms or 5m, not {text!r}")
    return float(found[1]) * _SECONDS[found[2]]


def read_time_us(text: str, name: str) -> int:
    """A point in time as microseconds: ISO-8601 (UTC if it names no zone), or epoch milliseconds, as in
    the options of Kafka."""
    text = text.strip()
    if re.fullmatch(r"\d{1,15}", text):
        return int(text) * 1000
    return moment_us(text, name)


def moment_us(moment: datetime | float | str, name: str) -> int:
    if isinstance(moment, str):
        moment = parse_iso(moment.strip(), name)
    if isinstance(moment, datetime):
        return moment_ms(moment, name) * 1000 + moment.microsecond % 1000
    return moment_ms(moment, name) * 1000


def read_list(text: str, name: str) -> tuple[str, ...]:
    """Names separated by commas, or a JSON list if a name has a comma."""
    text = text.strip()
    if text.startswith("["):
        import json

        try:
            listed = json.loads(text)
        except ValueError:
            listed = None
        if not isinstance(listed, list) or not all(isinstance(each, str) and each for each in listed):
            raise InvalidSetting(f"{name} must be names separated by commas, or a JSON list of texts")
        found = tuple(dict.fromkeys(listed))
    else:
        found = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
    if not found:
        raise InvalidSetting(f"{name} must name at least one")
    if len(found) > MAX_LISTED:
        raise InvalidSetting(
            f"{name} names {len(found)}, the limit is {MAX_LISTED}: join with a table instead"
        )
    return found


def one_of(*allowed: str) -> Callable[[str, str], str]:
    def read(text: str, name: str) -> str:
        if text.strip().lower() not in allowed:
            raise InvalidSetting(f"{name} must be {' or '.join(allowed)}, not {text!r}")
        return text.strip().lower()

    return read


def read_as_of(text: str, name: str) -> int | datetime:
    """A version of the archive, or a point in time."""
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) < 11:
        return int(text)
    try:
        return parse_iso(text, name)
    except InvalidSetting:
        raise InvalidSetting(
            f"{name} must be a version of the archive or look like 2023-04-03T10:30:00Z, not {text!r}"
        ) from None


@dataclass(frozen=True)
class Option:
    """One option: its name as in the documentation, where it is allowed, and how its text is parsed."""

    name: str
    uses: tuple[str, ...]
    read: Callable[[str, str], Any]
    help: str


_ALL_USES = (READ, STREAM, WRITE)
_READ_USES = (READ, STREAM)

OPTIONS = (
    Option("url", _ALL_USES, read_text, "address of the server"),
    Option("path", _READ_USES, read_text, "data directory of the server, read directly"),
    Option("archive", _READ_USES, read_text, "directory of the archive, if it is not PATH/archive"),
    Option("token", _ALL_USES, read_text, "token for the server; else OPENQ_TOKEN or OPENQ_TOKEN_FILE"),
    Option("retryTimeout", _ALL_USES, read_seconds, "how long to wait for an unreachable server"),
    Option("table", _READ_USES, one_of("messages", "events"), "messages (default) or events"),
    Option("queues", _READ_USES, read_list, "names or patterns with * and ?; default: all"),
    Option("queue", (STREAM, WRITE), read_text, "the queue to consume from, or to write to"),
    Option("startingTimestamp", _READ_USES, read_time_us, "from this time on"),
    Option("endingTimestamp", (READ,), read_time_us, "before this time"),
    Option("startingSeq", (READ,), read_number, "from this sequence number on"),
    Option("endingSeq", (READ,), read_number, "up to this sequence number"),
    Option("startingPosition", (READ,), read_number, "from this position in the journal on"),
    Option("endingPosition", (READ,), read_number, "before this position in the journal"),
    Option("messageIds", (READ,), read_list, "only these messages"),
    Option("events", _READ_USES, read_list, "only these events (table=events)"),
    Option("columns", _READ_USES, read_list, "only these columns"),
    Option("body", _READ_USES, one_of("true", "false", "json"), "false: no bodies; json: also as VARIANT"),
    Option("minPartitions", _READ_USES, read_count, "minimum number of tasks"),
    Option("maxBytesPerPartition", _READ_USES, read_bytes, "maximum size of one task"),
    Option("asOf", (READ,), read_as_of, "the archive at this version or time"),
    Option("failOnDataLoss", _READ_USES, read_flag, "false: continue if a part of the history is gone"),
    Option("mode", (STREAM,), one_of("log", "consume"), "log (default): read only; consume: take and ack"),
    Option("startingOffsets", (STREAM,), read_text, "earliest, latest, a position or a time"),
    Option("maxMessagesPerTrigger", (STREAM,), read_count, "maximum number in a micro-batch"),
    Option("maxBytesPerTrigger", (STREAM,), read_bytes, "maximum size of a micro-batch"),
    Option("minMessagesPerTrigger", (STREAM,), read_count, "wait for this number"),
    Option("maxTriggerDelay", (STREAM,), read_seconds, "maximum wait for it"),
    Option("cursor", (STREAM,), read_text, "name of a cursor on the server that keeps the history"),
    Option("holdBytes", (STREAM,), read_bytes, "maximum size that the cursor keeps"),
    Option("holdTime", (STREAM,), read_seconds, "maximum age that the cursor keeps"),
    Option("subscription", (STREAM,), read_text, "name of the subscription (mode=consume)"),
    Option(
        "leaseTimeout", (STREAM,), read_seconds, "when unfinished batches return to the queue (mode=consume)"
    ),
    Option("jobId", (WRITE,), read_text, "a write with the same id is published once"),
    Option("onError", (WRITE,), one_of("fail", "dlq"), "what to do with rows that cannot be published"),
    Option("dlq", (WRITE,), read_text, "the queue for them (onError=dlq)"),
    Option("createQueue", (WRITE,), read_flag, "true: create queues that do not exist"),
    Option("batchId", (WRITE,), read_number, "number of the batch within jobId"),
)
_BY_NAME = {option.name.lower(): option for option in OPTIONS}


@dataclass(frozen=True)
class SourceOptions:
    """Checked options; `value(name)` is the parsed value of one."""

    use: str
    values: Mapping[str, Any] = field(repr=False)  # has the token
    token: str | None = field(default=None, repr=False)

    @classmethod
    def parse(
        cls, given: Mapping[str, str], use: str, environ: Mapping[str, str] | None = None
    ) -> SourceOptions:
        """Raises InvalidSetting for an unknown name, a bad value, or options that contradict each other."""
        values: dict[str, Any] = {}
        for name, text in given.items():
            option = _BY_NAME.get(name.lower())
            if option is None:
                if name.lower() in _SPARK_OPTIONS or name.startswith(("spark.", "__")):
                    continue
                raise InvalidSetting(_unknown(name, use))
            if use not in option.uses:
                if name.lower() in _SPARK_OPTIONS:
                    continue
                raise InvalidSetting(
                    f"option {option.name} does not go with {use}; it is for {_uses_text(option)}"
                )
            values[option.name] = option.read(str(text), option.name)
        options = cls(use, values, values.get("token") or _token(os.environ if environ is None else environ))
        options._check()
        return options

    def value(self, name: str, default: Any = None) -> Any:
        assert name.lower() in _BY_NAME, name
        return self.values.get(name, default)

    def _text(self, name: str) -> str | None:
        text = self.values.get(name)
        return None if text is None else str(text)

    @property
    def url(self) -> str | None:
        return self._text("url")

    @property
    def path(self) -> str | None:
        return self._text("path")

    @property
    def table(self) -> str:
        return str(self.value("table", "messages"))

    @property
    def body(self) -> str:
        """true, false or json."""
        return str(self.value("body", "true"))

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The requested columns, without `body_json`, which body=json adds."""
        columns: tuple[str, ...] | None = self.values.get("columns")
        if columns is None or self.body != "json":
            return columns
        return tuple(name for name in columns if name != "body_json") or ("body",)

    @property
    def fail_on_data_loss(self) -> bool:
        return bool(self.value("failOnDataLoss", True))

    def selection(self) -> Selection:
        from ..history.selection import Selection

        return Selection(
            table=self.table,
            queues=self.value("queues", ()),
            since_us=self.value("startingTimestamp") if self.use == READ else None,
            until_us=self.value("endingTimestamp"),
            first_seq=self.value("startingSeq"),
            last_seq=self.value("endingSeq"),
            first_position=self.value("startingPosition"),
            end_position=self.value("endingPosition"),
            ids=self.value("messageIds", ()),
            events=self.value("events", ()),
            columns=self.columns,
            body=self.body != "false",
        )

    def ddl(self) -> str:
        """The schema as DDL of Spark."""
        from ..history.schema import ddl

        return ddl(self.table, self.columns, self.body)

    def _check(self) -> None:
        if self.use == WRITE or self.value("mode") == "consume":
            what = "writing goes through a server" if self.use == WRITE else "mode=consume needs a server"
            if self.url is None:
                raise InvalidSetting(f"{what}: set the option url, for example http://127.0.0.1:9324")
        elif self.url is None and self.path is None and self.value("archive") is None:
            raise InvalidSetting(
                "set the option url (a server, http://127.0.0.1:9324) or path (its data directory)"
            )
        if self.use != WRITE:
            if self.body == "json" and self.table != "messages":
                raise InvalidSetting("body=json is for table=messages: events have no bodies")
            self.selection().validate()


def _uses_text(option: Option) -> str:
    return " and ".join(option.uses)


def _unknown(name: str, use: str) -> str:
    known = {option.name.lower(): option.name for option in OPTIONS if use in option.uses}
    near = difflib.get_close_matches(name.lower(), known, 1, 0.5)
    hint = f"did you mean {known[near[0]]}?" if near else f"there are {', '.join(known.values())}"
    return f"there is no option {name!r}: {hint}"


def _token(environ: Mapping[str, str]) -> str | None:
    try:
        return secret("OPENQ_TOKEN", environ)
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"no token from the environment: {error}") from None


def as_options(**values: object) -> dict[str, str]:
    """Python values as texts of options; None is left out."""
    import json

    found: dict[str, str] = {}
    for name, value in values.items():
        assert name.lower() in _BY_NAME, name
        if value is None:
            continue
        if isinstance(value, bool):
            found[name] = str(value).lower()
        elif isinstance(value, datetime):
            found[name] = value.isoformat()
        elif isinstance(value, str) or not isinstance(value, Iterable):
            found[name] = str(value)
        elif listed := list(value):
            found[name] = json.dumps(listed)
    return found
