"""No name of a class of ours is one that a class of the standard library uses for itself.

A later Python may set an attribute that hides a method of ours, or ours may hide one of its own. So every
class of OpenQ with a base in the standard library is compared with that base, on each interpreter that the
tests run on (`make test-pythons`).
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import sys
import textwrap
import threading
from collections.abc import Iterator
from enum import Enum
from typing import Any

import pytest

import openq

# Values and messages of errors have no life of their own; the names of these bases are documented.
PLAIN = (BaseException, Enum, tuple)
# What is taken over on purpose: the command line reads options before the words between them; a response is
# read through a file that keeps the deadline.
ON_PURPOSE = {
    ("openq.cli.parser.Parser", "_actions"),
    ("openq.worker.http_runner._TimedResponse", "fp"),
}
ABSTRACT = {"abc", "typing", "collections.abc", "types"}
_OF_PYTHON = {"_abc_impl"}  # what `ABCMeta` gives each class by itself


def modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(openq.__path__, "openq."):
        if found.name.endswith("__main__") or found.name == "openq.testing.plugin":
            continue
        try:
            yield importlib.import_module(found.name)
        except ModuleNotFoundError as error:  # an extra that is not installed here
            if (error.name or "").startswith("openq"):
                raise


def bases(cls: type) -> list[type]:
    """The classes of the standard library that a class inherits from."""
    return [
        base
        for base in cls.__mro__[1:]
        if base is not object
        and base.__module__.partition(".")[0] in sys.stdlib_module_names
        and base.__module__ not in ABSTRACT
    ]


def classes(place: Any, module: str) -> Iterator[type]:
    """Those that a module defines, and those inside of them."""
    for value in vars(place).values():
        if isinstance(value, type) and value.__module__ == module:
            yield value
            yield from classes(value, module)


def subclasses() -> dict[str, type]:
    found = {}
    for module in modules():
        for cls in classes(module, module.__name__):
            if not issubclass(cls, PLAIN) and not getattr(cls, "_is_protocol", False) and bases(cls):
                found[f"{cls.__module__}.{cls.__qualname__}"] = cls
    return found


def set_on_self(cls: type) -> set[str]:
    """The attributes that methods of a class assign; empty for one that is not written in Python."""
    try:
        [tree] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError):
        return set()
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def collisions(cls: type) -> list[str]:
    own = [each for each in cls.__mro__ if each.__module__.partition(".")[0] not in sys.stdlib_module_names]
    ours = {name for each in own for name in vars(each) if not _is_special(name)}
    ours_on_self = {name for each in own for name in (*set_on_self(each), *getattr(each, "__slots__", ()))}
    found = []
    for base in bases(cls):
        theirs, theirs_on_self = set(vars(base)), set_on_self(base)
        for name in sorted(((ours | ours_on_self) & (theirs | theirs_on_self)) - _OF_PYTHON):
            if (f"{cls.__module__}.{cls.__qualname__}", name) in ON_PURPOSE:
                continue
            if name in theirs_on_self and not _is_setting(base, name):
                found.append(f"{name} is an attribute of every {base.__name__}")
            elif name.startswith("_") and not _is_special(name):
                found.append(f"{name} is {base.__name__}'s own")
            elif name in ours_on_self and callable(getattr(base, name, None)):
                found.append(f"{name} hides a method of {base.__name__}")
            elif name in ours and callable(getattr(cls, name)) != callable(getattr(base, name, None)):
                found.append(f"{name} is something else in {base.__name__}")
    return found


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_setting(base: type, name: str) -> bool:
    """One that subclasses are meant to set: a property with a setter, such as a thread's name."""
    found = inspect.getattr_static(base, name, None)
    return isinstance(found, property) and found.fset is not None


FOUND = subclasses()


@pytest.mark.parametrize("name", sorted(FOUND))
def test_no_name_is_one_of_the_standard_library(name: str) -> None:
    assert collisions(FOUND[name]) == []


def test_a_collision_would_be_found() -> None:
    class Hidden(threading.Thread):
        def _started(self) -> None: ...  # a thread sets it: no method would be there

    class Hiding(threading.Thread):
        def __init__(self) -> None:
            super().__init__(name="fine", daemon=True)
            self.name = "this too"
            self.join = None

    assert collisions(Hidden) == ["_started is an attribute of every Thread"]
    assert collisions(Hiding) == ["join hides a method of Thread"]
