"""Tests of the library that run on Redis too: the same functions with another target."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from types import FunctionType, ModuleType
from typing import Any


def collect_tests(module: ModuleType, fixture: str, without: Collection[str] = ()) -> dict[str, Any]:
    """Its tests that ask for the fixture, without their own choice of places."""
    unknown = set(without) - set(vars(module))
    assert not unknown, f"no longer in {module.__name__}: {unknown}"
    return {
        name: _without_parametrize(found, fixture)
        for name, found in vars(module).items()
        if name.startswith("test_")
        and name not in without
        and isinstance(found, FunctionType)
        and fixture in inspect.signature(found).parameters
    }


def _without_parametrize(test: FunctionType, fixture: str) -> FunctionType:
    twin = FunctionType(test.__code__, test.__globals__, test.__name__, test.__defaults__, test.__closure__)
    twin.__kwdefaults__ = test.__kwdefaults__
    twin.__annotations__ = test.__annotations__
    twin.__dict__.update(test.__dict__)
    marks = [mark for mark in getattr(test, "pytestmark", []) if not _parametrizes(mark, fixture)]
    twin.__dict__["pytestmark"] = marks
    return twin


def _parametrizes(mark: Any, fixture: str) -> bool:
    return mark.name == "parametrize" and mark.args[0] == fixture
