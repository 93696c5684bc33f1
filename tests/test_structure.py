"""The shape of the repository: sizes of files, the size of the interface, privates, names in documents."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from openq.broker.interface import Broker

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "openq"
MAX_LINES = 700
MAX_NAMES = 45

# Underscored names that are public by the documentation of their owners, or have no public twin.
ALLOWED = {
    *("_asdict", "_fields", "_replace"),  # of named tuples
    *("_get_running_loop", "_current_frames", "_exit", "_at_fork_reinit", "_parser", "_constants", "_Hash"),
    *("_jvm", "_jsc", "_gateway", "_active_spark_context", "_ensure_initialized"),  # of PySpark
}


class PrivateUse(NamedTuple):
    line: int
    name: str


def private_uses(source: str) -> Iterator[PrivateUse]:
    """Underscored attributes of other objects, and imported names, that this module does not define."""
    tree = ast.parse(source)
    own = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            own.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            own.add(node.value)  # of `__slots__`
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            names = [] if is_own else [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names] if node.level or node.module == "openq" else []
        else:
            continue
        for name in names:
            if re.match(r"_[^_]", name) and name not in own | ALLOWED:
                yield PrivateUse(node.lineno, name)


@pytest.mark.parametrize("folder", ["src", "tests", "bench"])
def test_a_file_has_at_most_700_lines(folder: str) -> None:
    sizes = {str(path): len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py")}

    assert {path: lines for path, lines in sizes.items() if lines > MAX_LINES} == {}


def test_the_interface_of_a_broker_has_at_most_45_names() -> None:
    """The methods of its roles, and its parts; the parts have interfaces of their own."""
    names = {name for role in Broker.__mro__ for name in vars(role) if not name.startswith("_")}

    assert "publish_many" in names
    assert len(names) <= MAX_NAMES


def test_no_module_uses_private_names_of_another() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{use.line} {use.name}"
        for path in sorted(SOURCE.rglob("*.py"))
        for use in private_uses(path.read_text())
    ]

    assert found == []


@pytest.mark.parametrize(
    "source",
    ["def f(other):\n    return other._count", "from .queue import _hidden", "from openq import _hidden"],
)
def test_a_private_name_of_another_module_is_seen(source: str) -> None:
    assert len(list(private_uses(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    def f(self):\n        return self._count",
        "class A:\n    def f(self, other):\n        self._count = other._count",
        "def f(row):\n    return row._replace(a=1)",
    ],
)
def test_a_private_name_of_the_same_module_is_allowed(source: str) -> None:
    assert list(private_uses(source)) == []


PATH = re.compile(r"`([\w*.][\w./*-]*(?:/|\.(?:py|lua|md|txt|toml|html)))`")
FOLDERS = (
    SOURCE,
    SOURCE / "redis",
    SOURCE / "rest",
    ROOT,
    ROOT / "docs",
    ROOT / "tests",
    ROOT / "web" / "src",
)
# Written by `make web` and by a broker; not in the repository.
MADE = {"api/schema.ts"}


def paths_in(text: str) -> list[str]:
    return [found for found in PATH.findall(text) if found not in MADE]


def exists(path: str) -> bool:
    """At one of the places that documents speak of; a bare name may be anywhere in the source."""
    name = path.rstrip("/")
    if any(any(folder.glob(name)) for folder in FOLDERS):
        return True
    return "/" not in name and (any(SOURCE.rglob(name)) or any((ROOT / "tests").rglob(name)))


@pytest.mark.parametrize("document", ["docs/ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_path_in_a_document_exists(document: str) -> None:
    paths = paths_in((ROOT / document).read_text())

    assert len(paths) > 10
    assert [path for path in paths if not exists(path)] == []


def test_a_stale_path_is_seen() -> None:
    assert paths_in("the file `engine/gone.py`, the folder `sqs/`, a name `queue.publish`") == [
        "engine/gone.py",
        "sqs/",
    ]
    assert not exists("engine/gone.py")
    assert exists("sqs/")
