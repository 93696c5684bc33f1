"""Celery with its own AMQP transport: a real application, unchanged, with workers that are processes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real_clients.celery_amqp import Application, counts_of
from tests.real_clients.celery_restarts import survive
from tests.redis.servers import single
from tests.serving import Served, served_amqp
from tests.waiting import until

ServerAndPort = tuple[Served, int]  # a server and its AMQP port


@pytest.fixture(scope="module")
def amqp_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerAndPort]:
    with served_amqp(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def results() -> Iterator[str]:
    """The address of a Redis or Valkey, where Celery keeps the results of tasks."""
    with single() as store:
        yield f"{store.url}/0"


@pytest.fixture(scope="module")
def application(
    amqp_server: ServerAndPort, results: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Application]:
    with Application(amqp_server[1], tmp_path_factory.mktemp("celery"), results) as running:
        running.start_worker("--task-events")
        yield running


def test_tasks_run_and_their_results_come_back(application: Application) -> None:
    said = application.play("plain")

    assert said == {"sums": [2 * n for n in range(20)], "echo": True}


def test_a_task_with_a_countdown_does_not_run_before_its_time(application: Application) -> None:
    assert application.play("countdown")["waited"] >= 2


def test_a_task_that_asks_for_it_is_tried_again(application: Application) -> None:
    assert application.play("retries") == {"retries": 2, "runs": 3}


def test_a_task_that_fails_says_why(application: Application) -> None:
    assert application.play("failure") == {"state": "FAILURE", "error": "ValueError('no')"}


def test_chains_groups_and_chords_give_what_they_should(application: Application) -> None:
    assert application.play("canvas") == {
        "chain": 10,
        "group": [1, 2, 3, 4, 5],
        "chord": 380,
        "after a chord": 15,
    }


def test_a_revoked_task_does_not_run_and_a_running_one_is_ended(application: Application) -> None:
    assert application.play("revoked") == {"states": ["REVOKED", "REVOKED"], "ran": 0}


def test_workers_answer_questions_and_obey_commands(application: Application) -> None:
    assert application.play("remote_control") == {
        "pong": {"ok": "pong"},
        "queue": application.queue,
        "knows add": True,
        "transport": "amqp",
        "extra": 42,
        "queues left": [application.queue],
    }


def test_a_monitor_sees_the_life_of_a_task(application: Application) -> None:
    assert application.play("events") == ["task-received", "task-started", "task-succeeded"]


def test_a_broadcast_task_runs_on_every_worker(application: Application) -> None:
    application.start_worker()

    assert application.play("broadcast", "2") == {"runs": 2, "workers": 2}


def test_nothing_is_left_in_the_queue_when_all_tasks_are_done(
    application: Application, amqp_server: ServerAndPort
) -> None:
    until(lambda: counts_of(amqp_server[0], application.queue) == (0, 0))


def test_tasks_hours_ahead_do_not_block_the_worker_and_come_back_when_it_stops(
    amqp_server: ServerAndPort, results: str, tmp_path: Path
) -> None:
    server, port = amqp_server
    with Application(port, tmp_path, results) as application:
        worker = application.start_worker()

        assert application.play("hours_ahead") == {"sum": 3, "ran": 0}
        assert counts_of(server, application.queue) == (0, 25)

        application.stop(worker)
        until(lambda: counts_of(server, application.queue) == (25, 0))


def test_a_task_whose_worker_is_killed_is_done_by_another(
    amqp_server: ServerAndPort, results: str, tmp_path: Path
) -> None:
    with Application(amqp_server[1], tmp_path, results) as application:
        doomed = application.start_worker()
        task = application.play("careful_sent")
        assert doomed.wait(30) == -signal.SIGKILL

        application.start_worker()

        assert application.play("careful_done", task) == {"result": "done", "runs": 2}


def test_celery_delays_tasks_in_the_broker_when_queues_are_quorum_queues(
    amqp_server: ServerAndPort, results: str, tmp_path: Path
) -> None:
    server, port = amqp_server
    with Application(port, tmp_path, results, kind="quorum") as application:
        application.start_worker()

        said = application.play("delayed_in_the_broker")

        assert said["now"] == 3
        assert said["waited"] >= 3
        assert said["key"] == "0." * 26 + f"1.1.{application.queue}"
        # Three hours are 10,800 s: the highest bit of that is 8,192, and there the task waits first.
        assert counts_of(server, "celery_delayed_13") == (1, 0)
        assert "Failed" not in application.log_of(0).read_text()
        assert application.play("retries") == {"retries": 2, "runs": 3}


def test_results_come_back_through_the_broker_too(amqp_server: ServerAndPort, tmp_path: Path) -> None:
    with Application(amqp_server[1], tmp_path, backend="rpc://") as application:
        application.start_worker()

        assert application.play("plain") == {"sums": [2 * n for n in range(20)], "echo": True}
        assert application.play("failure") == {"state": "FAILURE", "error": "ValueError('no')"}


def test_tasks_of_higher_priority_run_first(amqp_server: ServerAndPort, tmp_path: Path) -> None:
    with Application(amqp_server[1], tmp_path, kind="priority") as application:
        # The queue must be there, declared as the worker does it, before tasks are sent to it.
        worker = application.start_worker(concurrency=1)
        application.stop(worker)
        application.play("prioritised")

        application.start_worker("--prefetch-multiplier", "1", concurrency=1)
        until(lambda: len(application.notes("order")) == 6)

        assert application.notes("order") == ["9:2", "9:5", "5:1", "5:4", "1:3", "0:0"]


def test_a_worker_finds_its_way_back_after_every_restart_of_the_server(tmp_path: Path) -> None:
    outcome = survive(3, tmp_path)

    assert outcome.is_same_worker
    assert outcome.accepted > 20
    assert outcome.lost == []
    assert outcome.unknown == []
    assert outcome.left_over == (0, 0)
