"""The SQL of a pipeline: finds the queues in a statement and puts views of Spark in their place.

Only the words below belong to OpenQ; everything else is SQL of Spark and is passed on unchanged.

    queue(a)            the history of a queue, up to now; names or patterns: queue(a, 'b.*')
    events(a)           what happened to its messages
    stream(queue(a))    the same as a stream: each run continues where the last one ended
    consume(queue(a))   takes messages out of the queue, and acks them when the result is committed
    queue(b), parquet('dir'), json('dir'), csv('dir')     the targets of INSERT INTO
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import InvalidSetting

BATCH, STREAM, CONSUME = "batch", "stream", "consume"
FORMATS = ("parquet", "json", "csv")
_TABLES = {"queue": "messages", "events": "events"}
_WORDS = (*_TABLES, STREAM, CONSUME)
_BEFORE_TABLE = {"from", "join", ",", "table"}


class SqlSyntaxError(InvalidSetting):
    """A statement that cannot be parsed; `at` is the offset of the mistake."""

    code = "usage"

    def __init__(self, text: str, at: int, why: str) -> None:
        line, column = text.count("\n", 0, at) + 1, at - (text.rfind("\n", 0, at) + 1) + 1
        where = f"column {column}" if "\n" not in text.strip() else f"line {line}, column {column}"
        super().__init__(f"{where}: {why}")
        self.at = at
        self.line, self.column = line, column


@dataclass(frozen=True)
class SqlSource:
    """Queues in place of a table; `view` is the view that replaces them."""

    table: str
    mode: str
    queues: tuple[str, ...]
    view: str


@dataclass(frozen=True)
class SqlTarget:
    kind: str  # "queue" or a format of files
    name: str
    overwrite: bool = False

    def __str__(self) -> str:
        return f"queue {self.name}" if self.kind == "queue" else f"{self.kind} files in {self.name}"


@dataclass(frozen=True)
class SqlStatement:
    text: str
    target: SqlTarget | None
    query: str  # for Spark
    sources: tuple[SqlSource, ...]
    shifts: tuple[tuple[int, int], ...]  # offsets in `query`, and the same places in `text`

    @property
    def is_stream(self) -> bool:
        return any(source.mode != BATCH for source in self.sources)

    @property
    def subscription_queues(self) -> tuple[str, ...]:
        return tuple(source.queues[0] for source in self.sources if source.mode == CONSUME)

    def original_position(self, at: int) -> int:
        """The offset in `text` of an offset in `query`."""
        known = [(start, original) for start, original in self.shifts if start <= at]
        start, original = known[-1] if known else (0, 0)
        return min(original + at - start, len(self.text))

    def words(self) -> set[str]:
        return {token.text.lower().strip("`") for token in _tokens(self.query)}

    def key(self, *more: str) -> str:
        """A hash of the statement that ignores its layout."""
        parts = [token.text for token in _tokens(self.text) if token.text != ";"]
        return hashlib.sha256("\0".join((*parts, *more)).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class _Token:
    kind: str  # word, text, name, sign
    text: str
    at: int

    @property
    def end(self) -> int:
        return self.at + len(self.text)

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.lower() in words


_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
    |(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<name>`(?:[^`]|``)*`)
    |(?P<word>\w+)
    |(?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        assert found is not None
        assert found.lastgroup is not None
        if found.lastgroup == "sign" and found[0] in "'\"`":
            raise SqlSyntaxError(text, at, f"the {found[0]} here is never closed")
        if found.lastgroup == "sign" and text.startswith("/*", at):
            raise SqlSyntaxError(text, at, "the comment here is never closed")
        if found.lastgroup != "space":
            yield _Token(found.lastgroup, found[0], at)
        at = found.end()


def parse(text: str) -> SqlStatement:
    """Raises SqlSyntaxError, which has the position."""
    return _Parser(text).statement()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        while self._tokens and self._tokens[-1].text == ";":
            self._tokens.pop()
        if not self._tokens:
            raise SqlSyntaxError(
                text, 0, "there is no statement: write INSERT INTO queue(b) SELECT ... or SELECT ..."
            )
        self._sources: list[SqlSource] = []

    def statement(self) -> SqlStatement:
        tokens = self._tokens
        for token in tokens:
            if token.text == ";" and token.kind == "sign":
                raise self._error_at(token, "one statement at a time: nothing may follow the semicolon")
        target, at = None, 0
        if tokens[0].is_word("insert"):
            target, at = self._target()
        first = tokens[at] if at < len(tokens) else None
        if first is None or not (
            first.is_word("select", "with", "from", "values", "table") or first.text == "("
        ):
            what = "a query (SELECT ...) is expected" + (" after the target" if target else "")
            raise self._error_at(first, what if target else f"{what}, or INSERT INTO ...")
        query, shifts = self._query(at)
        made = SqlStatement(self._text, target, query, tuple(self._sources), shifts)
        if made.is_stream and target is None:
            raise self._error_at(
                tokens[0], "a stream has no end to show: name its target, INSERT INTO queue(b)"
            )
        if made.is_stream and target is not None and target.overwrite:
            raise self._error_at(tokens[1], "a stream only adds rows: write INSERT INTO")
        if target is not None and target.kind == "queue":
            for source in self._sources:
                if source.mode != BATCH and source.table == "messages" and target.name in source.queues:
                    raise self._error_at(
                        tokens[0],
                        f"queue {target.name!r} is both read and written: its results would be read again",
                    )
        return made

    def _target(self) -> tuple[SqlTarget, int]:
        tokens = self._tokens
        if len(tokens) < 2 or not tokens[1].is_word("into", "overwrite"):
            raise self._error_at(tokens[1] if len(tokens) > 1 else None, "INTO is expected after INSERT")
        kinds = ("queue", *FORMATS)
        word = tokens[2] if len(tokens) > 2 else None
        if word is None or not word.is_word(*kinds):
            raise self._error_at(
                word, "INSERT INTO writes to queue(NAME), parquet('DIR'), json('DIR') or csv('DIR')"
            )
        names, at = self._names(3, word)
        if len(names) != 1:
            raise self._error_at(word, f"{word.text} takes one name here")
        kind = word.text.lower()
        overwrite = tokens[1].is_word("overwrite")
        if kind == "queue" and overwrite:
            raise self._error_at(
                tokens[1], "a queue cannot be overwritten: write INSERT INTO; to empty it, purge it"
            )
        if kind == "queue" and set("*?") & set(names[0]):
            raise self._error_at(word, "messages go to one queue: its name without * and ?")
        return SqlTarget(kind, names[0], overwrite), at

    def _query(self, at: int) -> tuple[str, tuple[tuple[int, int], ...]]:
        tokens = self._tokens
        done = tokens[at].at
        made: list[str] = []
        length = 0
        shifts = [(0, done)]
        before: _Token | None = None
        is_table_list = False
        while at < len(tokens):
            token = tokens[at]
            opens = at + 1 < len(tokens) and tokens[at + 1].text == "("
            if token.is_word(*_WORDS) and opens and not (before is not None and before.text == "."):
                if before is None or not (
                    before.is_word(*_BEFORE_TABLE) or (before.text == "," and is_table_list)
                ):
                    raise self._error_at(token, f"{token.text}(...) is a table: it must follow FROM or JOIN")
                source, at = self._source(at)
                piece = self._text[done : token.at] + source.view
                made.append(piece)
                length += len(piece)
                done = tokens[at - 1].end
                shifts.append((length, done))
                before = tokens[at - 1]
                continue
            if opens and before is not None and before.is_word("from", "join") and token.kind == "word":
                near = _near(token.text)
                if near is not None:
                    raise self._error_at(token, f"there is no {token.text}(...): did you mean {near}(...)?")
            if token.is_word("from"):
                is_table_list = True
            elif token.is_word("where", "group", "order", "having", "limit", "select", "on", "using"):
                is_table_list = False
            before = token
            at += 1
        made.append(self._text[done : tokens[-1].end])
        return "".join(made), tuple(shifts)

    def _source(self, at: int) -> tuple[SqlSource, int]:
        word = self._tokens[at]
        mode = word.text.lower()
        if mode in _TABLES:
            names, after = self._names(at + 1, word)
            return self._add(_TABLES[mode], BATCH, names), after
        inner = self._tokens[at + 2] if at + 2 < len(self._tokens) else None
        allowed = ("queue",) if mode == CONSUME else tuple(_TABLES)
        if inner is None or not inner.is_word(*allowed):
            wanted = " or ".join(f"{mode}({each}(NAME))" for each in allowed)
            raise self._error_at(inner, f"{wanted} is expected")
        names, after = self._names(at + 3, inner)
        if after >= len(self._tokens) or self._tokens[after].text != ")":
            raise self._error_at(
                self._tokens[after] if after < len(self._tokens) else None,
                f"{word.text}( is not closed: ) is expected",
            )
        if mode == CONSUME and (len(names) > 1 or set("*?") & set(names[0])):
            raise self._error_at(inner, "messages are consumed from one queue: its name without * and ?")
        return self._add(_TABLES[inner.text.lower()], mode, names), after + 1

    def _add(self, table: str, mode: str, queues: tuple[str, ...]) -> SqlSource:
        for known in self._sources:
            if (known.table, known.mode, known.queues) == (table, mode, queues) and mode == BATCH:
                return known  # one snapshot for both
        source = SqlSource(table, mode, queues, f"openq_{mode}_{len(self._sources) + 1}")
        self._sources.append(source)
        return source

    def _names(self, at: int, word: _Token) -> tuple[tuple[str, ...], int]:
        """(a, 'b c', d.*): the names, and where they end. Names with dots and dashes need no quotes."""
        tokens = self._tokens
        if at >= len(tokens) or tokens[at].text != "(":
            raise self._error_at(tokens[at] if at < len(tokens) else None, f"( is expected after {word.text}")
        names: list[str] = []
        while True:
            at += 1
            start = tokens[at] if at < len(tokens) else None
            if start is not None and start.kind in ("text", "name"):
                names.append(_unquoted(start.text))
                at += 1
            else:
                first = at
                while at < len(tokens) and (tokens[at].kind == "word" or tokens[at].text in ".-*?:/@"):
                    if at > first and tokens[at].at != tokens[at - 1].end:
                        raise self._error_at(tokens[at], "a name with a space in it needs quotes")
                    at += 1
                if at > first:
                    names.append(self._text[tokens[first].at : tokens[at - 1].end])
            if start is None or at >= len(tokens):
                raise self._error_at(None, f"{word.text}( is not closed: ) is expected")
            if not names or not names[-1] or tokens[at].text not in (",", ")"):
                raise self._error_at(
                    tokens[at], f"{word.text}(...) wants a name, in quotes if it is an unusual one"
                )
            if tokens[at].text == ")":
                return tuple(dict.fromkeys(names)), at + 1

    def _error_at(self, token: _Token | None, why: str) -> SqlSyntaxError:
        at = token.at if token is not None else len(self._text.rstrip())
        return SqlSyntaxError(self._text, at, why)


def _unquoted(text: str) -> str:
    sign, inner = text[0], text[1:-1]
    inner = inner.replace(sign * 2, sign)
    return inner if sign == "`" else re.sub(r"\\(.)", r"\1", inner)


def _near(word: str) -> str | None:
    from difflib import get_close_matches

    # Spark has table functions of its own, such as range(10).
    return next(iter(get_close_matches(word.lower(), _WORDS, 1, 0.75)), None)
