"""The imports of OpenQ point one way, and the engine stays pure.

The source is parsed, not run, so imports inside functions and under TYPE_CHECKING count too.
A new part of the package gets its place in LAYERS, or the first test names it.
"""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "openq"

PROTOCOLS = ["sqs", "amqp", "rest", "push"]

# From the bottom up. A part imports itself and what lies in a row before its own; parts in one row do
# not know each other. "openq" is the package's `__init__`: the public names.
LAYERS = [
    ["errors", "_version", "clock", "names", "logs", "histograms", "trace_context"],
    ["limits", "http_text"],
    ["amqp_fields", "packed", "cron"],
    ["properties"],
    ["model"],
    ["engine", "auth", "metrics", "parsing"],
    ["tracing"],
    ["settings", "schedule_tables", "webhook_tables", "alert_rules"],
    ["config"],
    ["journal"],
    ["history"],
    ["broker"],
    ["documents"],
    ["local"],
    ["redis"],
    ["server", "client"],
    ["webhooks", "backup"],
    ["alerts"],
    [*PROTOCOLS, "ui"],
    ["openq", "aio"],
    ["pipeline", "server.app", "sample", "worker"],
    ["testing"],
    ["cli"],
    ["__main__"],
]
RANK = {part: rank for rank, row in enumerate(LAYERS) for part in row}

# The engine is given the time and its random numbers, and gives back what to write.
IMPURE_MODULES = {
    *("time", "datetime", "sched", "random", "secrets", "uuid"),
    *("asyncio", "threading", "multiprocessing", "concurrent", "subprocess", "queue", "signal"),
    *("os", "io", "sys", "pathlib", "shutil", "tempfile", "mmap", "fcntl", "logging", "sqlite3"),
    *("socket", "ssl", "select", "selectors", "http", "urllib"),
}
IMPURE_CALLS = {"open", "print", "input", "exec", "eval", "__import__"}

# These parts stand on the standard library alone (docs/decisions/0003).
STANDARD_LIBRARY_ONLY = {
    "errors",
    "_version",
    "names",
    "histograms",
    "trace_context",
    "packed",
    "amqp_fields",
    "properties",
    "limits",
    "model",
    "engine",
    "journal",
}


class Import(NamedTuple):
    line: int
    module: str


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(source: str, module: str, is_package: bool = False) -> Iterator[Import]:
    """Every import as an absolute name; `from a import b` gives `a.b`, which may be a module or not."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                parents = parents[: len(parents) - node.level + is_package]
                base = ".".join([*parents, base] if base else parents)
            for alias in node.names:
                yield Import(node.lineno, f"{base}.{alias.name}")


def part_of(module: str, parts: set[str]) -> str | None:
    """The part of openq that a module belongs to; None for a module of somebody else."""
    package, _, rest = module.partition(".")
    if package == "OpenQ":
        return "openq"
    if package != "openq":
        return None
    first = rest.partition(".")[0]
    if ".".join(rest.split(".")[:2]) in RANK:
        return ".".join(rest.split(".")[:2])
    # `from openq import Producer` names no part: it takes a public name from the package itself.
    return first if first in parts else "openq"


def wrong_way(source: str, module: str, parts: set[str], is_package: bool = False) -> list[str]:
    own = part_of(module, parts)
    assert own is not None
    return [
        f"{module}:{line} imports {name}: {own} lies below {part} or beside it"
        for line, name in imports(source, module, is_package)
        if (part := part_of(name, parts)) is not None and part != own and RANK[part] >= RANK[own]
    ]


def impure(source: str, module: str) -> list[str]:
    found = [
        f"{module}:{line} imports {name}"
        for line, name in imports(source, module)
        if name.partition(".")[0] in IMPURE_MODULES
    ]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            found.append(f"{module}:{node.lineno} calls {node.func.id}()")
        elif isinstance(node, ast.AsyncFunctionDef | ast.Await):
            found.append(f"{module}:{node.lineno} is asynchronous")
    return found


def foreign(source: str, module: str) -> list[str]:
    return [
        f"{module}:{line} imports {name}"
        for line, name in imports(source, module)
        if (top := name.partition(".")[0]) != "openq" and top not in sys.stdlib_module_names
    ]


FILES = sorted(SOURCE.rglob("*.py"))
# Folders that hold no Python have no place among the layers.
PARTS = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in FILES} - {"__init__"}


def test_every_part_has_its_layer() -> None:
    assert PARTS - RANK.keys() == set(), "give the new part its place in LAYERS"


def test_the_architecture_shows_the_layers() -> None:
    text = (SOURCE.parent.parent / "docs" / "ARCHITECTURE.md").read_text()
    shown = text.partition("```layers\n")[2].partition("```")[0]

    assert shown.splitlines() == [", ".join(row) for row in LAYERS], "print LAYERS into ARCHITECTURE.md"


def test_imports_point_one_way() -> None:
    wrong = [
        line
        for path in FILES
        for line in wrong_way(
            path.read_text(), module_name(path, SOURCE), PARTS & RANK.keys(), path.name == "__init__.py"
        )
    ]

    assert wrong == []


def test_the_engine_is_pure() -> None:
    files = sorted((SOURCE / "engine").rglob("*.py"))

    assert [line for path in files for line in impure(path.read_text(), module_name(path, SOURCE))] == []


def test_redis_knows_no_disk() -> None:
    """It joins at the Broker: the state is in Redis, and there is no journal."""
    found = [
        name
        for path in sorted((SOURCE / "redis").rglob("*.py"))
        for _, name in imports(path.read_text(), module_name(path, SOURCE), path.name == "__init__.py")
    ]

    assert [name for name in found if name.startswith(("openq.journal", "openq.local.broker"))] == []


def imported_by(parts: Sequence[str], without: Collection[str] = ()) -> list[str]:
    """What the files of these parts import, as `module imports name`."""
    return [
        f"{module} imports {name}"
        for part in parts
        for path in sorted((SOURCE / part).rglob("*.py"))
        if (module := module_name(path, SOURCE)) not in without
        for _, name in imports(path.read_text(), module, path.name == "__init__.py")
    ]


def test_no_protocol_and_no_server_file_knows_a_store() -> None:
    """They know the roles of a broker; `server.app` alone opens one."""
    stores = ("openq.journal", "openq.local", "openq.redis")
    found = imported_by(["server", *PROTOCOLS], without={"openq.server.app"})

    assert [line for line in found if line.split(" imports ")[1].startswith(stores)] == []


def test_no_protocol_and_no_server_file_asks_which_store_it_has() -> None:
    """A role or a capability (`storage.waits`) says what differs; the name is only shown."""
    asked = re.compile(r"storage\.name\s*(==|!=|in\b)|\.journal\b|isinstance\([^)]*(LocalBroker|RedisBroker)")
    wrong = [
        f"{module_name(path, SOURCE)}: {found[0]}"
        for part in ("server", *PROTOCOLS)
        for path in sorted((SOURCE / part).rglob("*.py"))
        for found in asked.finditer(path.read_text())
    ]

    assert wrong == []


def test_the_journal_knows_the_engine_in_one_place() -> None:
    found = imported_by(["journal"], without={"openq.journal.content"})

    assert [line for line in found if " imports openq.engine" in line] == []


# The data pipeline meets the rest of OpenQ at few places (docs/ARCHITECTURE.md, "The data pipeline").
HISTORY_USES = (
    *("openq.amqp_fields", "openq.engine.records", "openq.engine.record_values"),
    *("openq.errors", "openq.journal", "openq.model", "openq.trace_context"),
)
PIPELINE_USES = (
    *("openq.client", "openq.config", "openq.errors", "openq.history", "openq.packed", "openq.parsing"),
    "openq.pipeline",
)
SEAMS = {"pipeline/cursors", "pipeline/subscriptions", "pipeline/stages"}
HISTORY_ROUTES = {"history/end", "history/rows", "history/snapshot"}


@pytest.mark.parametrize(
    ("part", "allowed"), [("history", ("openq.history", *HISTORY_USES)), ("pipeline", PIPELINE_USES)]
)
def test_the_data_pipeline_imports_little(part: str, allowed: tuple[str, ...]) -> None:
    used = {
        name
        for path in sorted((SOURCE / part).rglob("*.py"))
        for _, name in imports(path.read_text(), module_name(path, SOURCE), path.name == "__init__.py")
        if name.startswith("openq.")
    }

    assert {name for name in used if not name.startswith(allowed)} == set()


def test_the_pipeline_calls_a_server_at_three_seams() -> None:
    """Beside the history itself: cursors, subscriptions and staged batches."""
    texts = {
        node.value
        for path in (SOURCE / "pipeline").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    routes = {found[0] for text in texts if (found := re.match(r"(?:pipeline|history)/[a-z]+", text))}

    assert routes == SEAMS | HISTORY_ROUTES


def test_the_core_needs_the_standard_library_only() -> None:
    files = [p for p in FILES if p.relative_to(SOURCE).parts[0].removesuffix(".py") in STANDARD_LIBRARY_ONLY]

    assert [line for path in files for line in foreign(path.read_text(), module_name(path, SOURCE))] == []


def test_importing_openq_loads_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    program = (
        "import json, sys, time\n"
        "start = time.perf_counter()\n"
        "import openq\n"
        "print(json.dumps([time.perf_counter() - start, list(sys.modules)]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    seconds, modules = json.loads(done.stdout)

    with capsys.disabled():
        print(f" [import openq: {seconds * 1000:.0f} ms]", end="")
    heavy = {"asyncio", "uvloop", "httptools", "msgspec", "websockets", "pyspark", "pyarrow", "numpy"}
    heavy |= {"redis", "hiredis", "greenlet"}
    assert heavy.intersection(modules) == set()


# The rules themselves, on sources that break them.


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("openq.engine.queue", "from openq.journal import file_journal"),
        ("openq.engine.queue", "from openq import broker"),
        ("openq.engine.queue", "from openq import Producer"),
        ("openq.engine.queue", "import openq.local.broker"),
        ("openq.engine.queue", "from ..journal.file_journal import Journal"),
        ("openq.engine.queue", "from .. import journal"),
        ("openq.engine.queue", "from openq.auth import policy"),
        ("openq.errors", "import openq.model"),
        ("openq.journal.file_journal", "def late():\n    from openq.broker import base"),
        ("openq.journal.file_journal", "if TYPE_CHECKING:\n    from openq.broker import base"),
        ("openq.client.queues", "from OpenQ import OpenQ"),
        ("openq", "from openq.server.app import serve"),
        ("openq.server.app", "from openq.cli.main import main"),
    ],
)
def test_an_import_the_wrong_way_is_seen(module: str, source: str) -> None:
    assert wrong_way(source, module, set(RANK)) != []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("openq.engine.queue", "from openq.errors import OpenQError"),
        ("openq.engine.queue", "from openq import errors, model"),
        ("openq.engine.queue", "from .order import Groups"),
        ("openq.engine.queue", "from ..model import Message"),
        ("openq.journal.file_journal", "from openq.engine import records"),
        ("openq.testing.plugin", "from openq.client import embedded"),
        ("openq.cli.main", "from openq import OpenQ, server"),
        ("openq", "from openq.client.queues import OpenQ"),
        ("openq.engine.queue", "import openqueue, heapq"),
    ],
)
def test_an_import_the_right_way_is_allowed(module: str, source: str) -> None:
    assert wrong_way(source, module, set(RANK)) == []


def test_a_relative_import_in_a_package_starts_at_the_package() -> None:
    assert list(imports("from . import queue", "openq.engine", True)) == [(1, "openq.engine.queue")]
    assert list(imports("from . import ready", "openq.engine.queue")) == [(1, "openq.engine.ready")]


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from time import monotonic",
        "from datetime import datetime",
        "import os.path",
        "def late():\n    import random",
        "open('file')",
        "async def receive(): ...",
    ],
)
def test_what_is_not_pure_is_seen(source: str) -> None:
    assert impure(source, "openq.engine.queue") != []


def test_what_is_foreign_is_seen() -> None:
    assert foreign("import msgspec, struct\nfrom openq import errors", "openq.model") == [
        "openq.model:1 imports msgspec"
    ]
