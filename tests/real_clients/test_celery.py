"""Celery with its SQS transport: a real application, with workers that are processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real_clients import boto
from tests.real_clients.environments import CELERY, aws_environment, python_with, run_program
from tests.serving import Served
from tests.waiting import until

PROGRAMS = Path(__file__).parent / "programs"
VISIBILITY_S = 3


class Application:
    """One Celery application: its queue, its results, its workers."""

    def __init__(self, server: Served, place: Path) -> None:
        self.queue = boto.fresh()
        self.place = place
        (place / "results").mkdir()
        self._python = python_with(*CELERY)
        self._environment = aws_environment(
            server.url,
            CELERY_BROKER=f"sqs://test:test@127.0.0.1:{server.port}//",
            CELERY_PLACE=str(place),
            CELERY_QUEUE=self.queue,
            CELERY_VISIBILITY_S=str(VISIBILITY_S),
            PYTHONPATH=str(PROGRAMS),
        )
        self._workers: list[subprocess.Popen[bytes]] = []

    def start_worker(self) -> subprocess.Popen[bytes]:
        log = self.place / f"worker-{len(self._workers)}.log"
        command = [str(self._python), "-m", "celery", "-A", "celery_app", "worker", "--concurrency", "2"]
        quiet = ["--loglevel", "info", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        with log.open("wb") as file:
            worker = subprocess.Popen(
                [*command, *quiet],
                env=self._environment,
                cwd=self.place,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._workers.append(worker)

        def is_ready() -> bool:
            assert worker.poll() is None, log.read_text()
            return " ready." in log.read_text()

        until(is_ready)
        return worker

    def play(self, scenario: str, *arguments: str) -> Any:
        program = [str(self._python), str(PROGRAMS / "celery_app.py"), scenario, *arguments]
        return json.loads(run_program(program, self._environment, where=self.place))

    def stop(self) -> None:
        for worker in self._workers:
            try:
                # Its pool belongs to its session.
                os.killpg(worker.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            worker.wait(30)


@pytest.fixture(scope="module")
def application(server: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    running = Application(server, tmp_path_factory.mktemp("celery"))
    try:
        running.start_worker()
        yield running
    finally:
        running.stop()


def test_tasks_run_and_their_results_come_back(application: Application) -> None:
    said = application.play("plain")

    assert said == {"sums": [2 * n for n in range(20)], "echo": True}


def test_a_task_with_a_countdown_does_not_run_before_its_time(application: Application) -> None:
    said = application.play("countdown")

    assert said["waited"] >= 2


def test_a_task_that_asks_for_it_is_tried_again(application: Application) -> None:
    assert application.play("retries") == {"retries": 2, "runs": 3}


def test_a_task_that_fails_says_why(application: Application) -> None:
    assert application.play("failure") == {"state": "FAILURE", "error": "ValueError('no')"}


def test_tasks_in_a_row_and_side_by_side_give_what_they_should(application: Application) -> None:
    assert application.play("canvas") == {"chain": 10, "group": [1, 2, 3, 4, 5]}


def test_a_task_longer_than_the_visibility_timeout_runs_once(application: Application) -> None:
    assert application.play("long_task") == {"result": "done", "runs": 1}


def test_nothing_is_left_in_the_queue_when_all_tasks_are_done(
    application: Application, server: Served
) -> None:
    sqs = boto.client(server.url)
    url = sqs.get_queue_url(QueueName=application.queue)["QueueUrl"]

    def is_empty() -> bool:
        counts = boto.attributes_of(
            sqs, url, "ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"
        )
        return set(counts.values()) == {"0"}

    until(is_empty)
    sqs.close()


def test_a_task_whose_worker_is_killed_is_done_by_another(
    server: Served, tmp_path_factory: pytest.TempPathFactory
) -> None:
    application = Application(server, tmp_path_factory.mktemp("killed"))
    try:
        doomed = application.start_worker()
        task = application.play("send_careful")
        assert doomed.wait(30) == -signal.SIGKILL

        application.start_worker()
        said = application.play("wait_careful", task)
    finally:
        application.stop()

    assert said == {"result": "done", "runs": 2}
