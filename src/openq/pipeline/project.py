"""Projects of Spark Declarative Pipelines with the sources and sinks of OpenQ.

`init` writes a project from a template, `run` runs any. The runner of Spark is a client of Spark Connect: it
gets a process of its own, and a session (`session.py`) serves it on a loopback port with a secret. A project
gets the address and token of the OpenQ server by OPENQ_URL and OPENQ_TOKEN.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from ..config import DEFAULT_URL
from ..errors import InvalidSetting, OpenQError
from .session import NoSpark, check_master, is_running, reason, session

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from pyspark.sql import SparkSession

TEMPLATES = {
    "queue-to-table": "messages of a queue become rows of a table; the queue is only read",
    "table-to-queue": "rows of new files become messages",
    "queue-to-queue": "messages are consumed, changed, and published to another queue",
    "enrich": "as queue-to-queue, joined with a reference table in SQL",
}
DEFAULT_TEMPLATE = "queue-to-queue"
SPEC_NAMES = ("spark-pipeline.yml", "spark-pipeline.yaml")
STORAGE, TABLES = "pipeline-storage", "tables"
_SUFFIX = ".tmpl"
# Spark's client refuses two addresses.
_SPARK_VARIABLES = (
    "MASTER",
    "SPARK_REMOTE",
    "SPARK_API_MODE",
    "SPARK_LOCAL_REMOTE",
    "SPARK_CONNECT_MODE_ENABLED",
)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")


class PipelineFailed(OpenQError):
    """The runner of Spark ended with an error, which is in the message."""

    code = "pipeline_failed"


# -- a new project ------------------------------------------------------------------------------------


def init(
    directory: str | os.PathLike[str],
    template: str = DEFAULT_TEMPLATE,
    *,
    name: str | None = None,
    source: str = "orders",
    target: str = "results",
    url: str = DEFAULT_URL,
) -> list[Path]:
    """Write a project into a new or empty directory. Returns its files.

    `source` and `target` are the queues to read and to write, where the template does so.
    """
    if template not in TEMPLATES:
        raise InvalidSetting(f"there is no template {template!r}: there are {', '.join(TEMPLATES)}")
    folder = Path(directory)
    name = name or folder.resolve().name
    if not _NAME.fullmatch(name):
        raise InvalidSetting(
            f"{name!r} is not a name for a pipeline: it must begin with a letter and have only letters, "
            "digits, '-' and '_' (--name)"
        )
    for queue in (source, target):
        if not queue or set("*?") & set(queue):
            raise InvalidSetting(f"name a queue without * and ?, not {queue!r}")
    if source == target:
        raise InvalidSetting(f"both queues are {source!r}: results would be read again; name two queues")
    words = {
        "name": name,
        "name_text": repr(name),
        "ident": name.replace("-", "_").lower(),
        "dir": str(directory),
        "storage": (folder.resolve() / STORAGE).as_uri(),
        "url": repr(url),
        **{key: repr(queue) for key, queue in (("from", source), ("to", target))},
        "from_plain": source,
        "to_plain": target,
    }
    root = files("openq.pipeline") / "templates"
    texts = {each.name.removesuffix(_SUFFIX): each for each in root.iterdir() if each.is_file()}
    texts |= dict(_files(root / template))
    return _write(
        folder, {path: _fill_template(each.read_text("utf-8"), words) for path, each in texts.items()}
    )


def _files(folder: Traversable, above: str = "") -> Iterator[tuple[str, Traversable]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _files(each, f"{above}{each.name}/")
        elif each.name.endswith(_SUFFIX):
            yield above + each.name.removesuffix(_SUFFIX), each


def _fill_template(text: str, words: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: words[found[1]], text)


def _write(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """All files, or none if something fails."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise InvalidSetting(f"{folder} is not a directory: name one that is new or empty")
    if folder.is_dir() and any(folder.iterdir()):
        raise InvalidSetting(f"{folder} is not empty: name a directory that is new or empty")
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for path, text in texts.items():
            (made / path).parent.mkdir(parents=True, exist_ok=True)
            (made / path).write_text(text, "utf-8")
        made.chmod(0o755)
        os.replace(made, folder)  # onto an empty directory, if there is one
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return [folder / path for path in sorted(texts)]


# -- running one --------------------------------------------------------------------------------------


@dataclass
class RunResult:
    """The result of a run. `flows` has the last state of each flow, such as COMPLETED."""

    flows: dict[str, str] = field(default_factory=dict)
    acked: dict[str, int] = field(default_factory=dict)  # the last batch of each subscription

    def to_json(self) -> dict[str, Any]:
        return {"flows": self.flows, "acked": self.acked}


def run(
    project: str | os.PathLike[str],
    *,
    spark: SparkSession | None = None,
    url: str | None = None,
    token: str | None = None,
    master: str | None = None,
    conf: Mapping[str, object] | None = None,
    dry_run: bool = False,
    refresh: Sequence[str] = (),
    full_refresh: Sequence[str] | bool = (),
    progress: Callable[[str], None] | None = None,
) -> RunResult:
    """Run a project once, over all that is new. `dry_run` only checks it.

    `project` is its directory or its spec file; `spark` a session to run it in, instead of one of its own.
    `full_refresh` names tables to compute again, or is True for all; `refresh` names those to run instead of
    all. `progress` gets the output of Spark, line by line.
    """
    spec = spec_of(project)
    for package in ("pyspark", "yaml", "grpc"):
        if find_spec(package) is None:
            raise NoSpark("Declarative Pipelines need Spark and its client: pip install 'openq[spark]'")
    env = {name: value for name, value in os.environ.items() if name not in _SPARK_VARIABLES}
    env |= {"PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore"}
    if url is not None:
        env["OPENQ_URL"] = url
    if token is not None:
        env["OPENQ_TOKEN"] = token
        env.pop("OPENQ_TOKEN_FILE", None)
    if dry_run and (refresh or full_refresh):
        raise InvalidSetting("a dry run checks the whole project: leave refresh and full_refresh out")
    words = [sys.executable, "-m", "pyspark.pipelines.cli", "dry-run" if dry_run else "run"]
    words += ["--spec", str(spec)]
    if full_refresh is True:
        words += ["--full-refresh-all"]
    elif full_refresh:
        words += ["--full-refresh", ",".join(full_refresh)]
    if refresh:
        words += ["--refresh", ",".join(refresh)]
    storage = _storage(spec)
    if spark is None and master is not None and master.startswith("sc://"):
        if conf:
            raise InvalidSetting(f"conf does not go with sc://: put it under configuration in {spec.name}")
        check_master(master)
        env["SPARK_REMOTE"] = master
        ran = _launch(words, env, spec.parent, progress)
    else:
        used = spark
        is_ours = spark is None and not is_running()
        if used is None:
            name = f"openq pipeline {spec.parent.name}"
            used = session(master, name, **{**_tables(spec), **(conf or {})})
        try:
            env["SPARK_REMOTE"], env["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = _serve(used)
            ran = _launch(words, env, spec.parent, progress)
        finally:
            if is_ours:
                used.stop()
    if not dry_run:
        ran.acked = _ack_last_batches(storage, env)
    return ran


def spec_of(project: str | os.PathLike[str]) -> Path:
    """The spec file of a project. Raises InvalidSetting if there is none."""
    path = Path(project).resolve()
    if path.is_file():
        return path
    found = [path / name for name in SPEC_NAMES if (path / name).is_file()]
    if len(found) == 1:
        return found[0]
    if found:
        raise InvalidSetting(f"{project} has two specs, {' and '.join(SPEC_NAMES)}: keep one of them")
    raise InvalidSetting(
        f"{project} is not a pipeline project, it has no {SPEC_NAMES[0]}: `openq pipeline init` creates one"
    )


def _storage(spec: Path) -> str:
    import yaml  # type: ignore[import-untyped, unused-ignore]

    try:
        content = yaml.safe_load(spec.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        at = f" (line {where.line + 1})" if where is not None else ""
        raise InvalidSetting(f"{spec.name} is not YAML{at}: correct it") from None
    if not isinstance(content, dict) or not isinstance(content.get("storage"), str):
        raise InvalidSetting(
            f"{spec.name} must have name and storage: see the templates of `openq pipeline init`"
        )
    return str(content["storage"])


def _tables(spec: Path) -> dict[str, str]:
    """Keeps tables and their catalog in the project: the default catalog of Spark ends with the process."""
    from urllib.parse import quote

    home = spec.parent
    names = quote(str(home / "metastore_db"), safe="/")
    return {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": (home / TABLES).as_uri(),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={names};create=true",
        "spark.driver.extraJavaOptions": f"-Dderby.stream.error.file={os.devnull}",
        "spark.sql.hive.convertMetastoreParquet": "true",
    }


def _serve(spark: SparkSession) -> tuple[str, str]:
    """Start a Connect server in a session, for the child process. Returns its address and its secret."""
    jvm: Any = spark.sparkContext._jvm
    context: Any = spark.sparkContext._jsc.sc()  # type: ignore[attr-defined, unused-ignore]
    settings = context.conf()
    # A Scala object, as Java sees it.
    service = getattr(getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$"), "MODULE$")
    if not settings.contains("spark.connect.authenticate.token"):
        settings.set("spark.connect.authenticate.token", secrets.token_urlsafe(32))
        settings.set("spark.connect.grpc.binding.address", "127.0.0.1")
        settings.set("spark.connect.grpc.binding.port", "0")
    service.start(context)  # once only
    # "localhost": only to that name does Spark's client send a secret without TLS.
    return f"sc://localhost:{service.localPort()}", str(settings.get("spark.connect.authenticate.token"))


def _launch(
    words: Sequence[str], env: Mapping[str, str], cwd: Path, progress: Callable[[str], None] | None
) -> RunResult:
    ran = RunResult()
    output: list[str] = []
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        child = subprocess.Popen(
            words,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            assert child.stdout is not None
            with child.stdout:
                for line in child.stdout:
                    text = re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d: ", "", line.rstrip())
                    output.append(text)
                    if found := re.match(r"Flow '?([^' ]+)'? (?:is|has) (\w+)", text):
                        ran.flows[found[1].rpartition(".")[2]] = found[2].upper()
                    if progress is not None and text:
                        progress(text)
            code = child.wait()
        finally:
            if child.poll() is None:
                child.terminate()
                child.wait()
        errors.seek(0)
        if code:
            raise PipelineFailed(_failure_message("\n".join(output) + "\n" + errors.read()))
    return ran


def _failure_message(text: str) -> str:
    """The error message in the output of Spark's runner."""
    ours = reason(Exception(text))
    if ours is not None:
        return ours
    found = re.findall(r"^(?:pyspark\.[\w.]+|[\w.]+(?:Error|Exception)): (.+)$", text, re.MULTILINE)
    return (
        found[-1] if found else text.strip().rpartition("\n")[2] or "Spark's runner failed without a message"
    )[:1000]


def _ack_last_batches(storage: str, env: Mapping[str, str]) -> dict[str, int]:
    """Ack the last batch of each flow, which an ended flow does not do itself."""
    from .closer import close_stream

    acked: dict[str, int] = {}
    parts = urlsplit(storage)
    root = unquote(parts.path) if parts.scheme == "file" else storage
    if not env.get("OPENQ_URL") or not os.path.isdir(root):
        return acked
    for folder, inside, _ in os.walk(root):
        if "offsets" in inside and "commits" in inside:
            inside.clear()
            acked |= close_stream(folder, env["OPENQ_URL"], env.get("OPENQ_TOKEN"))
    return acked
