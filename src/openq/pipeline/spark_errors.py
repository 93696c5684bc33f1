"""Errors of Spark as one sentence, without class names, SQL states, plans and stack traces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..errors import InvalidSetting, OpenQError
from .session import reason

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MAX_SENTENCE = 600
SQL_POSITION = re.compile(r"[;,]?\s*\(?line (\d+),? pos (\d+)\)?;?")


def spark_sentence(text: str) -> str:
    """The first sentence of an error text of Spark."""
    raised = re.search(r"\[USER_RAISED_EXCEPTION\]\s+(.+?)\s+SQLSTATE", text, re.DOTALL)
    if raised:
        return raised[1].strip()
    coded = re.search(r"\[[A-Z][A-Z_0-9.]+\]\s*([^\n]+)", text)
    if coded:
        first = coded[1]
    else:
        lines = (
            line.strip()
            for line in text.split("\n")
            if not line.startswith(("JVM stacktrace", "==", "\tat "))
        )
        first = next((line for line in lines if line), "Spark failed without a message")
    first = re.sub(r"\s*SQLSTATE:? \w+", "", first)
    return SQL_POSITION.sub("", first).strip().rstrip(";")[:_MAX_SENTENCE]


@contextmanager
def sql_errors(prefix: str = "") -> Iterator[None]:
    """Errors in a user's SQL, and errors of OpenQ raised inside Spark, as one sentence."""
    from pyspark.errors import AnalysisException, PySparkException

    try:
        yield
    except OpenQError:
        raise
    except AnalysisException as error:
        raise InvalidSetting(f"{prefix}{spark_sentence(str(error))}") from None
    except Exception as error:
        sentence = reason(error)
        if sentence is not None:
            raise OpenQError(sentence) from None
        if isinstance(error, PySparkException):
            raise OpenQError(f"{prefix}{spark_sentence(str(error))}") from None
        raise


def matching(frame: DataFrame, where: str | None) -> DataFrame:
    """The rows for which the condition holds. Raises InvalidSetting if Spark cannot analyse it."""
    from pyspark.errors import AnalysisException

    if where is None:
        return frame
    try:
        chosen = frame.where(where)
        _ = chosen.schema  # a Connect session analyses it only now
        return chosen
    except AnalysisException as error:
        hint = f"; there are {', '.join(frame.columns)}" if "UNRESOLVED_COLUMN" in str(error) else ""
        raise InvalidSetting(f"where: {spark_sentence(str(error))}{hint}") from None


def mentions(sql: str | None, columns: tuple[str, ...]) -> bool:
    """Whether one of these words is in it. A word that only looks like a column costs time, nothing else."""
    words = {word.lower() for word in re.findall(r"\w+", sql or "")}
    return not words.isdisjoint(columns)
