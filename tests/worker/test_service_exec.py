"""`openq worker --exec`: a program for each message, whose exit code decides."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from openq import OpenQ
from openq.worker.exec_runner import ExecHandler, variables
from openq.worker.message_worker import ACK
from tests.serving import Served, served
from tests.waiting import until
from tests.worker.service import lines_of, worker


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture
def jobs(server: Served, request: pytest.FixtureRequest) -> Iterator[OpenQ]:
    name = request.node.name.replace("[", "-").replace("]", "")[:70]
    queue = OpenQ(name, url=server.url, dlq=f"{name}-dead", max_receives=3, retry="none")
    yield queue
    queue.close()


def flags(server: Served, queue: OpenQ) -> tuple[str, ...]:
    return ("--queue", queue.name, "--url", server.url)


def test_exit_code_0_acks_and_the_message_is_on_stdin_and_in_the_environment(
    server: Served, jobs: OpenQ, tmp_path: Path
) -> None:
    command = (
        'cat > "$OPENQ_ATTRIBUTE_FILE_NAME"; '
        'echo "$OPENQ_QUEUE $OPENQ_RECEIVE_COUNT $OPENQ_MESSAGE_TYPE" > seen.tmp; mv seen.tmp seen'
    )
    jobs.publish("ten bytes\0", attributes={"file-name": "body", "evil": "a\0b"}, message_type="image")

    with worker(tmp_path, "--exec", command, *flags(server, jobs)) as service:
        until(lambda: service.metric("openq_worker_jobs_total") == 1)

    assert (tmp_path / "body").read_bytes() == b"ten bytes\0"
    assert (tmp_path / "seen").read_text() == f"{jobs.name} 1 image\n"
    assert jobs.stats().ready == jobs.stats().in_flight == 0


def test_other_exit_codes_nack_with_the_last_lines_of_stderr(
    server: Served, jobs: OpenQ, tmp_path: Path
) -> None:
    jobs.publish("x")
    dead = OpenQ(f"{jobs.name}-dead", url=server.url)

    with worker(tmp_path, "--exec", "seq 100 >&2; exit 9", *flags(server, jobs)):
        until(lambda: dead.stats().ready == 1)

    [letter] = dead.queue
    assert letter.deaths[0]["receive_count"] == 3
    reason = letter.reason or letter.deaths[0]["reason"]
    assert reason.startswith("exit code 9: 81\n82\n")
    assert reason.endswith("\n100")
    dead.close()


def test_exit_code_75_returns_the_message_for_later(server: Served, jobs: OpenQ, tmp_path: Path) -> None:
    jobs.publish("x")

    with worker(tmp_path, "--exec", "exit 75", "--retry-delay", "1h", *flags(server, jobs)) as service:
        until(lambda: service.metric("openq_worker_jobs_total") == 1)

    assert jobs.stats().delayed == 1
    [message] = jobs.messages
    assert message.reason == "exit code 75 (temporary failure)"  # type: ignore[attr-defined]


def test_a_timeout_kills_the_whole_process_group(server: Served, jobs: OpenQ, tmp_path: Path) -> None:
    jobs.publish("x", delay=0)
    command = "trap '' TERM; (trap '' TERM; echo $$ > child; sleep 600) & wait; sleep 600"

    with worker(
        tmp_path, "--exec", command, "--timeout", "1s", "--threads", "1", *flags(server, jobs)
    ) as service:
        until(lambda: service.metric('openq_worker_jobs_total{task="exec"') >= 1)
        service.signal(signal.SIGTERM)
        service.signal(signal.SIGTERM)
        assert service.wait() == 0

    assert service.logged("timed out after 1 s")
    group = int(lines_of(tmp_path / "child")[0])
    until(lambda: not _group_exists(group))


def _group_exists(group: int) -> bool:
    import os

    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_sigterm_finishes_what_runs_and_receives_nothing_more(
    server: Served, jobs: OpenQ, tmp_path: Path
) -> None:
    jobs.publish("first")
    command = "cat >> started; until [ -e go ]; do sleep 0.05; done; cat started > finished"

    with worker(tmp_path, "--exec", command, "--threads", "1", *flags(server, jobs)) as service:
        until(lambda: lines_of(tmp_path / "started") == ["first"])
        jobs.publish("second")
        service.signal(signal.SIGTERM)
        until(lambda: service.logged("SIGTERM: jobs that run may finish"))
        (tmp_path / "go").touch()
        assert service.wait() == 0

    assert lines_of(tmp_path / "finished") == ["first"]
    assert [message.body for message in jobs.queue] == ["second"]


def test_a_second_sigterm_gives_the_message_back_uncounted(
    server: Served, jobs: OpenQ, tmp_path: Path
) -> None:
    jobs.publish("slow")

    with worker(tmp_path, "--exec", "echo $$ > pid; sleep 600", *flags(server, jobs)) as service:
        until(lambda: lines_of(tmp_path / "pid"))
        service.signal(signal.SIGTERM)
        until(lambda: service.logged("SIGTERM: "))
        service.signal(signal.SIGTERM)
        assert service.wait() == 0

    [message] = jobs.queue
    assert message.receive_count == 0
    until(lambda: not _group_exists(int(lines_of(tmp_path / "pid")[0])))


def test_without_a_queue_the_usage_is_explained(tmp_path: Path) -> None:
    import subprocess
    import sys

    ended = subprocess.run(
        [sys.executable, "-m", "openq", "worker", "--exec", "true"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )

    assert ended.returncode == 2
    assert ended.stderr == "openq: --exec needs one --queue\n"


@pytest.mark.parametrize(
    "attributes",
    [
        {"a": "\U0001f600" * 60_000},
        {f"a{i}": "x" * 60_000 for i in range(100)},
        {"LD_PRELOAD": "/evil.so", "a\nb": "c\nd", "e": "f\0g"},
    ],
    ids=["long characters", "many attributes", "strange names"],
)
def test_a_command_runs_whatever_the_attributes_are(attributes: dict[str, object]) -> None:
    with OpenQ("attributes", codec="raw") as queue:
        queue.publish(b"x", attributes=attributes)
        message = queue.receive(timeout=0)
        assert message is not None
        found = variables(message)
        outcome = ExecHandler("exit 0", timeout_s=60, retry_delay_s=1).handle(message)
    assert outcome == ACK
    assert found["OPENQ_QUEUE"] == "attributes"
    assert all(name.startswith("OPENQ_") for name in found)
