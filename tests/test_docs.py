"""What the documents show is true: their snippets run, and so do the examples.

Of README.md and docs/*.md, every ```python block runs, a file's blocks in order in one namespace, and
every line of a ```console block that starts with `$ openq ` or `$ curl `.
All in one temporary folder per file. A document that names a default address of the server gets a server.
A block is left out by an HTML comment just before it: `<!-- not run: needs a server -->`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.serving import served_amqp
from tests.shared_spark import JAVA

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TIMEOUT_S = 240
# A document that names one of them gets a server, in memory, on other ports.
SERVER = "127.0.0.1:9324"
AMQP = "127.0.0.1:5672"

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>\w*)[^`]*$")
NOT_RUN = re.compile(r"^ *<!-- not run: \S.* -->$")


class Step(NamedTuple):
    line: int
    language: str
    text: str


def steps(document: str) -> list[Step]:
    """The blocks to run, each with the number of its first line. An open fence at the end is an error."""
    found: list[Step] = []
    lines = document.splitlines()
    previous = ""
    at = 0
    while at < len(lines):
        fence = FENCE.match(lines[at])
        if fence is None:
            if lines[at].strip():
                previous = lines[at]
            at += 1
            continue
        start = at + 1
        at = start
        while lines[at].strip() != fence["ticks"]:
            at += 1
            if at == len(lines):
                raise ValueError(f"the block opened on line {start} is never closed")
        body = [line.removeprefix(fence["indent"]) for line in lines[start:at]]
        if not NOT_RUN.match(previous):
            if fence["language"] == "python":
                found.append(Step(start + 1, "python", "\n".join(body)))
            elif fence["language"] == "console":
                found += commands(body, start + 1)
        previous = ""
        at += 1
    return found


def commands(body: list[str], first_line: int) -> list[Step]:
    found: list[Step] = []
    rest = iter(enumerate(body, first_line))
    for number, line in rest:
        if line.startswith(("$ openq ", "$ curl ")):
            command = line.removeprefix("$ ")
            while command.endswith("\\"):
                command += "\n" + next(rest, (0, ""))[1]
            found.append(Step(number, "console", command))
    return found


# Runs in a process of its own, so that a snippet that hangs can be ended and threads do not pile up here.
# The blank lines in front make a traceback name the document's own line.
RUNNER = """
import json, os, shutil, subprocess, sys
name, steps = json.load(sys.stdin)
# For the commands only: the library would take it for the place of its queues.
url = os.environ.pop("SERVER_URL", None)
commands = {**os.environ, "OPENQ_URL": url} if url else None
namespace = {"__name__": "__main__"}
for line, language, text in steps:
    if language == "python":
        exec(compile("\\n" * (line - 1) + text, name, "exec"), namespace)
    else:
        if text.startswith("curl "):
            if shutil.which("curl") is None:
                continue  # the test below is skipped then, and says so
            text = text.replace("curl ", "curl -sS --fail-with-body ", 1)
        done = subprocess.run(text, shell=True, stdin=subprocess.DEVNULL, env=commands)
        if done.returncode:
            sys.exit(f"{name}:{line}: exit code {done.returncode}: {text}")
"""


def run(command: list[str], folder: Path, stdin: str = "", env: dict[str, str] | None = None) -> None:
    scripts = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "PYTHONUNBUFFERED": "1",
        # The document's own Spark, with a Java that starts quickly.
        "SPARK_SUBMIT_OPTS": JAVA,
        "SPARK_LAUNCHER_OPTS": JAVA,
        **(env or {}),
    }
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as late:
        pytest.fail(f"still running after {TIMEOUT_S} s\n{late.stdout!r}\n{late.stderr!r}")
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback (most recent call last)" not in done.stderr, done.stderr


def run_document(name: str, text: str, folder: Path) -> None:
    if SERVER not in text and AMQP not in text:
        run([sys.executable, "-c", RUNNER], folder, json.dumps([name, steps(text)]))
        return
    # Webhooks of a document reach the receiver in it.
    with served_amqp(None, "--webhook-allow", "127.0.0.1") as (server, amqp_port):
        text = text.replace(SERVER, f"127.0.0.1:{server.port}").replace(AMQP, f"127.0.0.1:{amqp_port}")
        env = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "SERVER_URL": server.url}
        run([sys.executable, "-c", RUNNER], folder, json.dumps([name, steps(text)]), env)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_a_document_s_snippets_run(path: Path, tmp_path: Path) -> None:
    run_document(path.name, path.read_text(), tmp_path)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed: its snippets do not run")
def test_a_curl_that_gets_an_error_is_seen(tmp_path: Path) -> None:
    text = f"```console\n$ curl -X POST {SERVER}/api/v1/queues/none/receive --json '{{}}'\n```\n"

    with pytest.raises(AssertionError, match=r"doc.md:2: exit code"):
        run_document("doc.md", text, tmp_path)


# The reader of documents itself.

SAMPLE = """\
Text.

```python
a = 1
```

1. In a list:

   ```python
   if a:
       b = 2
   ```

<!-- not run: it never ends -->

```python
while True: ...
```

```console
$ pip install openq
$ openq publish orders \\
    hello
published
$ openq stats
```

```json
{}
```

````markdown
```python
shown, not run
```
````
"""


PROSE = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def long_lines(document: str) -> list[int]:
    """Lines of prose over 110 columns. Tables, code and single long words cannot be wrapped."""
    found, is_code = [], False
    for number, line in enumerate(document.splitlines(), 1):
        if FENCE.match(line):
            is_code = not is_code
        text = line.strip()
        may_be_long = is_code or line.startswith("    ") or text.startswith("|") or " " not in text[2:]
        if len(line) > 110 and not may_be_long:
            found.append(number)
    return found


@pytest.mark.parametrize("path", PROSE, ids=lambda path: path.name)
def test_the_lines_of_a_document_fit_into_110_columns(path: Path) -> None:
    assert long_lines(path.read_text()) == []


def test_long_lines_are_found_outside_of_code_and_tables() -> None:
    long = "word " * 30
    assert long_lines(f"{long}\n\n```\n{long}\n```\n| {long} |\n- {long}") == [1, 7]


def test_blocks_are_found_in_order_with_their_lines() -> None:
    assert steps(SAMPLE) == [
        (4, "python", "a = 1"),
        (10, "python", "if a:\n    b = 2"),
        (22, "console", "openq publish orders \\\n    hello"),
        (25, "console", "openq stats"),
    ]


def test_an_exemption_counts_for_one_block_only() -> None:
    text = "<!-- not run: because -->\n```python\na\n```\n```python\nb\n```\n"

    assert [step.text for step in steps(text)] == ["b"]


def test_an_exemption_gives_its_reason() -> None:
    assert len(steps("<!-- not run: -->\n```python\na\n```\n")) == 1


def test_a_block_that_is_never_closed_is_an_error() -> None:
    with pytest.raises(ValueError, match="line 2"):
        steps("text\n```python\na = 1\n")


def test_later_blocks_see_the_names_of_earlier_ones(tmp_path: Path) -> None:
    run_document("doc.md", "```python\na = 1\n```\n\n```python\nassert a == 1\n```\n", tmp_path)


def test_a_failing_snippet_names_its_line(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r'File "doc.md", line 4'):
        run_document("doc.md", "text\n\n```python\n1 / 0\n```\n", tmp_path)


def test_a_failing_command_is_seen(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"doc.md:2: exit code"):
        run_document("doc.md", "```console\n$ openq no-such-command\n```\n", tmp_path)
