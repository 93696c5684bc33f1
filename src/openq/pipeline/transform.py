"""The `transform` of a redrive: another body for a dead letter, by SQL or by a function of the user."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import InvalidSetting
from .spark_errors import spark_sentence

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Transform = Callable[[dict[str, Any]], Any]

NO_BODY = "transform returned no body"
_FUNCTION = re.compile(r"(.+\.py):([A-Za-z_]\w*)")


def function_of(transform: str | None) -> Transform | None:
    """The function that `file.py:function` names; None for SQL."""
    named = _FUNCTION.fullmatch(transform.strip()) if transform is not None else None
    if named is None:
        return None
    path, name = named.groups()
    spec = importlib.util.spec_from_file_location("openq_transform", path)
    if spec is None or spec.loader is None or not os.path.isfile(path):
        raise InvalidSetting(f"transform: there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InvalidSetting(f"transform: {path} cannot be loaded: {type(error).__name__}: {error}") from None
    found = getattr(module, name, None)
    if not callable(found):
        raise InvalidSetting(f"transform: {path} has no function {name!r}")
    return found  # type: ignore[no-any-return]


def with_new_body(frame: DataFrame, transform: str | None, function: Transform | None) -> DataFrame:
    """Adds `new_body` if the transform is SQL."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    if transform is None or function is not None:
        return frame
    try:
        changed = frame.withColumn("new_body", F.expr(transform))
        kind = changed.schema["new_body"].dataType.simpleString()
    except AnalysisException as error:
        raise InvalidSetting(f"transform: {spark_sentence(str(error))}") from None
    if kind.startswith(("struct", "map", "array", "variant")):
        return changed.withColumn("new_body", F.to_json("new_body"))
    return changed if kind == "binary" else changed.withColumn("new_body", F.col("new_body").cast("string"))


def new_body(row: dict[str, Any], function: Transform | None) -> tuple[bytes | None, str | None]:
    """The body to send, or the reason why there is none."""
    if row["body"] is None:
        return None, "its publish is no longer in the history"
    if function is None:
        made = row["new_body"]
    else:
        given = {**row, "body": bytes(row["body"]), "attributes": plain_attributes(row["attributes"])}
        given.pop("body_json", None)
        try:
            made = function(given)
        except Exception as error:
            return None, f"transform: {type(error).__name__}: {error}"
    if made is None:
        return None, NO_BODY
    if isinstance(made, bytes | bytearray | memoryview):
        return bytes(made), None
    if isinstance(made, str):
        return made.encode(), None
    try:
        return json.dumps(made, ensure_ascii=False).encode(), None
    except (TypeError, ValueError) as error:
        return None, f"transform: {error}"


def plain_attributes(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Attributes for a function of the user: each value as text, number or bytes."""
    found: dict[str, Any] = {}
    for name, value in (attributes or {}).items():
        kind, text, data = value["type"], value["string"], value["binary"]
        if data is not None:
            found[name] = bytes(data)
        elif kind == "Number" and text is not None and re.fullmatch(r"-?\d{1,18}", text):
            found[name] = int(text)
        else:
            found[name] = text
    return found
