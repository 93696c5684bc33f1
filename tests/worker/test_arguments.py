"""Arguments and results: types, codecs, and what the type checker knows."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openq.worker import App, InvalidArguments, InvalidTask
from openq.worker.codec import read_body


class Colour(Enum):
    RED = "red"


@dataclass
class Address:
    street: str
    since: date


class Order(msgspec.Struct):
    number: int
    address: Address | None = None


VALUES = [
    (datetime, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
    (date, date(2026, 1, 2)),
    (timedelta, timedelta(minutes=5)),
    (uuid.UUID, uuid.uuid4()),
    (Decimal, Decimal("12.30")),
    (Colour, Colour.RED),
    (Address, Address("Main", date(2026, 1, 2))),
    (Order, Order(7, Address("Main", date(2026, 1, 2)))),
    (list[Order], [Order(1), Order(2)]),
    (dict[str, Decimal], {"a": Decimal("1.0")}),
    (bytes, b"\x00\xff"),
    (tuple[int, str], (1, "a")),
    (set[int], {1, 2}),
    (Path, Path("a/b")),
    (int | None, None),
    (Any, {"free": ["form", 1]}),
]


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@pytest.mark.parametrize(("kind", "value"), VALUES, ids=[str(kind) for kind, _ in VALUES])
def test_values_arrive_as_the_annotation_says(kind: Any, value: Any, codec: str) -> None:
    app = App(codec=codec, result_ttl=60)
    seen: list[Any] = []

    def handler(first: Any, *, second: Any = None) -> Any:
        seen.append((first, second))
        return first

    handler.__annotations__ = {"first": kind, "second": kind, "return": kind}
    task = app.task(handler)
    with app.testing() as testing:
        job = task.send(value, second=value)
        assert testing.run() == 1
        assert seen == [(value, value)]
        assert job.result(timeout=1) == value


class Model:
    """What `openq.worker` uses of a pydantic model."""

    def __init__(self, name: str) -> None:
        self.name = name

    def model_dump(self, mode: str = "python") -> dict[str, str]:
        return {"name": self.name}

    @classmethod
    def model_validate(cls, value: Any) -> Model:
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            raise ValueError("name: must be text")
        return cls(value["name"])


def test_models_with_the_methods_of_pydantic_are_encoded_and_validated() -> None:
    app = App()
    seen: list[Any] = []

    @app.task
    def greet(model: Model, others: list[Model]) -> None:
        seen.extend([model, *others])

    with app.testing() as testing:
        greet.send(Model("a"), [Model("b")])
        testing.run()
        assert [type(each) for each in seen] == [Model, Model]
        assert [each.name for each in seen] == ["a", "b"]
        with pytest.raises(InvalidArguments, match="name: must be text"):
            greet.send(Model(5), [])  # type: ignore[arg-type]


def test_real_pydantic_models_work() -> None:
    pydantic = pytest.importorskip("pydantic")
    app = App()
    seen: list[Any] = []
    kind = pydantic.create_model("Person", name=(str, ...), born=(date, ...))

    def greet(person: Any) -> None:
        seen.append(person)

    greet.__annotations__["person"] = kind
    task = app.task(greet)
    with app.testing() as testing:
        task.send(kind(name="a", born=date(2000, 1, 2)))
        testing.run()
        assert seen == [kind(name="a", born=date(2000, 1, 2))]


def test_a_job_of_another_program_runs() -> None:
    app = App()
    seen: list[Any] = []

    @app.task(queue="mail")
    def send_mail(to: str, *, when: date | None = None) -> None:
        seen.append((to, when))

    with app.testing() as testing:
        queue = app.queues.open("mail")
        queue.publish({"args": ["a"]}, message_type="send_mail")  # REST
        queue.publish('{"args": ["b"], "kwargs": {"when": "2026-01-02"}}', message_type="send_mail")  # SQS
        queue.publish(b'{"kwargs": {"to": "c"}}', message_type="send_mail")  # AMQP
        testing.run()
    assert seen == [("a", None), ("b", date(2026, 1, 2)), ("c", None)]


@pytest.mark.parametrize(
    "body",
    [
        "no json",
        b"\x81\xff\xff",
        "[1]",
        '{"args": {"to": "a"}}',
        '{"args": [1]}',
        '{"args": []}',
        '{"args": ["a"], "kwargs": {"cc": "b"}}',
    ],
)
def test_a_job_with_wrong_arguments_is_kept_as_a_dead_letter(body: Any) -> None:
    app = App()

    @app.task(queue="mail")
    def send_mail(to: str) -> None:
        raise AssertionError("must not run")

    with app.testing() as testing:
        app.queues.open("mail").publish(body, message_type="send_mail")
        testing.run()
        letter = app.queues.open("mail-dead").peek()
        assert letter is not None
        assert (letter.reason or "").startswith("InvalidArguments: ")


def test_values_that_have_no_encoding_are_refused_when_sent() -> None:
    app = App()

    @app.task
    def take(value: Any) -> None: ...

    for value in (object(), lambda: None, [{"a": object()}]):
        with pytest.raises(InvalidArguments):
            take.send(value)
    app.close()


def test_the_body_is_plain_json() -> None:
    app = App()

    @app.task(queue="mail")
    def send_mail(to: str, *, subject: str) -> None: ...

    send_mail.send_with(priority=5, key="a", attributes={"tenant": "x"})("a@example.org", subject="hi")
    message = app.queues.open("mail").peek()
    assert message is not None
    assert message.message_type == "send_mail"
    assert json.loads(message.body) == {"args": ["a@example.org"], "kwargs": {"subject": "hi"}}
    assert (message.priority, message.group, message.attributes) == (5, "a", {"tenant": "x"})
    app.close()


def test_a_unique_job_is_added_once_while_it_waits() -> None:
    app = App()

    @app.task
    def tidy() -> None: ...

    with app.testing() as testing:
        first, second = tidy.send_with(unique="tidy")(), tidy.send_with(unique="tidy")()
        assert first == second
        assert testing.run() == 1
        assert tidy.send_with(unique="tidy")() != first


TYPED = """
from openq.worker import App, Job, Message, group
app = App()

@app.task(queue="mail", retries=5)
def send_mail(to: str, *, subject: str) -> int:
    raise NotImplementedError

@app.task
async def fetch(url: str) -> bytes:
    raise NotImplementedError

@app.task
def parse(data: bytes, lang: str = "en") -> list[str]:
    raise NotImplementedError

@app.consumer("orders", batch=100)
async def take(messages: list[Message]) -> None: ...

@app.consumer("events")
def one(message: Message) -> None: ...

@app.cron("*/5 * * * *")
def tidy() -> None: ...

job: Job[int] = send_mail.send("a", subject="b")
number: int = send_mail.send_with(delay=5)("a", subject="b").result()
direct: int = send_mail("a", subject="b")
data: Job[bytes] = fetch.send("u")
words: Job[list[str]] = fetch.s("u").then(parse, lang="de").send()
many: list[bytes] = group([fetch.s("a"), fetch.s("b")]).send().result()
tidy.send()

async def main() -> bytes:
    sent = await fetch.asend("u")
    assert (await sent.aresult()) == b""
    return await fetch("u")
"""
WRONG = [
    "send_mail.send(1, subject='b')",
    "send_mail.send('a')",
    "send_mail.send('a', subject='b', cc='c')",
    "send_mail.send_with(delay='x')",
    "send_mail.send_with(when=1)",
    "text: str = send_mail.send('a', subject='b').result()",
    "text2: str = fetch.send('u').result()",
    "send_mail.s('a', subject='b').then(parse)",
    "fetch.s('u').then(parse, lang=5)",
    "tidy.send(1)",
]


def test_the_type_checker_knows_the_arguments_of_send(tmp_path: Path) -> None:
    file = tmp_path / "typed.py"
    file.write_text(TYPED + "\n".join(WRONG) + "\n")
    first = len(TYPED.splitlines()) + 1
    source = Path(__file__).parent.parent.parent / "src"
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context"]
    run = subprocess.run(
        [*command, "--cache-dir", str(tmp_path / "cache"), "--follow-imports", "silent", str(file)],
        capture_output=True,
        text=True,
        env={"MYPYPATH": str(source), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        check=False,
    )
    lines = {int(line.split(":")[1]) for line in run.stdout.splitlines() if ": error:" in line}
    assert lines == set(range(first, first + len(WRONG))), run.stdout + run.stderr


def test_errors_of_arguments_and_options_name_them() -> None:
    app = App()

    @app.task
    def resize(width: int, *rest: int, **names: int) -> None: ...

    with pytest.raises(InvalidArguments, match="task 'resize': argument 'width': Expected `int`, got `str`"):
        resize.send("wide")  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments, match="argument 2: Expected `int`"):
        resize.send(1, "wide")  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments, match="argument 'depth': Expected `int`"):
        resize.send(1, depth="deep")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"send_with\(\) got an unexpected keyword argument 'countdown'"):
        resize.send_with(countdown=60)  # type: ignore[call-arg]
    with pytest.raises(InvalidTask, match="timeout must be a number of seconds, more than 0, not '30s'"):
        app.task(timeout="30s")(lambda: None)  # type: ignore[call-overload]


@pytest.mark.parametrize("body", [b"not json", b"", b"[1]", "not json", b"\x93\x01\x02\x03", b"\xff\xfe"])
def test_a_body_that_is_no_job_says_what_one_is(body: bytes | str) -> None:
    with pytest.raises(InvalidArguments, match=r'the body of a job is \{"args": \[...\], "kwargs"'):
        read_body(body)
