"""The worker: leases, stopping, prefetch, weights, outages."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openq import OpenQ
from openq.worker import App, LeaseLost, Middleware, Worker, current_job
from openq.worker.prefetch import Prefetch
from openq.worker.ready import ReadyJobs
from tests.redis.servers import FORCED, single
from tests.serving import free_port, start
from tests.waiting import until
from tests.worker.helpers import MakeApp, RunWorker, outcomes


def test_a_job_longer_than_its_lease_runs_once(make_app: MakeApp, run_worker: RunWorker) -> None:
    app = make_app(lease=1)
    runs: list[float] = []

    @app.task
    def long() -> None:
        runs.append(time.monotonic())
        while time.monotonic() < runs[0] + 2.5:
            time.sleep(0.01)

    long.send()
    worker = run_worker(app, threads=2)
    until(lambda: outcomes(worker).get("done") == 1)
    assert len(runs) == 1


def test_a_dead_workers_jobs_return_within_its_lease(tmp_path: Path) -> None:
    """A worker process is killed in the middle of a job."""
    with_server = start(None, port=free_port()).wait()
    try:
        program = tmp_path / "program.py"
        program.write_text(
            "import sys, time\n"
            "from openq.worker import App, Worker\n"
            f"app = App(url={with_server.url!r}, lease=2)\n"
            "@app.task\n"
            "def job() -> None:\n"
            "    print('started', flush=True)\n"
            "    time.sleep(3600)\n"
            "Worker(app).run()\n"
        )
        app = App(url=with_server.url, lease=2)
        ran: list[int] = []

        @app.task
        def job() -> None:
            ran.append(current_job().attempt)

        job.send()
        dying = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True)
        assert dying.stdout is not None
        assert dying.stdout.readline() == "started\n"
        dying.kill()
        dying.wait()
        dying.stdout.close()
        worker = Worker(app)
        worker.start()
        until(lambda: ran == [2])
        worker.stop()
        app.close()
    finally:
        with_server.stop()


def test_jobs_go_on_after_a_restart_of_the_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    server = start(tmp_path / "data", port=port).wait()
    app = App(url=server.url, reconnect=0.1)
    seen: list[int] = []

    @app.task
    def note(number: int) -> None:
        seen.append(number)

    worker = Worker(app)
    with caplog.at_level(logging.INFO, "openq.worker"):
        try:
            worker.start()
            note.send(1)
            until(lambda: seen == [1])
            server.stop()
            until(lambda: worker.snapshot().is_unreachable)
            server = start(tmp_path / "data", port=port).wait()
            note.send(2)
            until(lambda: seen == [1, 2])
            until(lambda: not worker.snapshot().is_unreachable)
        finally:
            worker.stop(grace=5)
            app.close()
            server.stop()
    assert len([line for line in caplog.messages if "cannot be used" in line]) == 1
    assert len([line for line in caplog.messages if "is back after" in line]) == 1


def test_an_unreachable_server_is_noticed_before_senders_give_up(tmp_path: Path) -> None:
    server = start(tmp_path / "data", port=free_port()).wait()
    app = App(url=server.url, reconnect=600, lease=1)
    interrupts: list[BaseException] = []

    @app.task
    def wait() -> None:
        try:
            while True:
                time.sleep(0.01)
        except BaseException as error:
            interrupts.append(error)
            raise

    worker = Worker(app)
    try:
        worker.start()
        wait.send()
        until(lambda: worker.snapshot().running)
        server.stop()
        until(lambda: worker.snapshot().is_unreachable)
        until(lambda: interrupts)
    finally:
        worker.stop(grace=0)
        app.close()
        server.stop()
    assert [type(each) for each in interrupts] == [LeaseLost]


def test_prefetch_follows_the_run_time() -> None:
    prefetch = Prefetch(None)
    assert prefetch.limit(8) == 0, "nothing is known yet"
    for _ in range(100):
        prefetch.observe(0.00001)
    assert prefetch.limit(8) == 1000
    prefetch.observe(5.0)
    assert prefetch.limit(8) == 0, "one long job is enough to stop"
    assert Prefetch(16).limit(8) == 16


def test_queues_are_taken_by_their_weights() -> None:
    ready = ReadyJobs({"mail": 1, "orders": 3})
    ready.add("mail", ["mail"] * 10)  # type: ignore[list-item]
    ready.add("orders", ["orders"] * 10)  # type: ignore[list-item]

    taken = [ready.take() for _ in range(8)]
    assert taken.count("orders") == 6  # type: ignore[arg-type]
    assert [ready.take() for _ in range(12)].count("mail") == 8  # type: ignore[arg-type]


def test_jobs_that_wait_too_long_for_a_thread_go_to_other_workers(make_app: MakeApp) -> None:
    app = make_app()
    release = threading.Event()
    names: list[str] = []

    @app.task
    def block() -> None:
        names.append(threading.current_thread().name.rpartition("-")[0])
        release.wait(60)

    for _ in range(3):
        block.send()
    greedy = Worker(app, threads=1, prefetch=10, name="greedy")
    greedy.start()
    until(lambda: len(names) == 1)
    other = Worker(app, threads=2, name="other")
    other.start()
    until(lambda: len(names) == 3)
    release.set()
    until(lambda: outcomes(other).get("done") == 2)
    greedy.stop()
    other.stop()
    assert sorted(names) == ["greedy", "other", "other"]
    assert all(message.receive_count == 1 for message in app.queues.open("default").messages)


def test_a_quiet_worker_finishes_but_takes_nothing(make_app: MakeApp, run_worker: RunWorker) -> None:
    app = make_app()
    started, release = threading.Event(), threading.Event()

    @app.task
    def block() -> None:
        started.set()
        release.wait(60)

    block.send()
    worker = run_worker(app)
    assert started.wait(60)
    worker.quiet()
    later = block.send()
    release.set()
    until(lambda: outcomes(worker).get("done") == 1)
    snapshot = worker.snapshot()
    assert (snapshot.is_quiet, snapshot.busy) == (True, 0)
    until(lambda: later.status() == "waiting")  # a receive that was under way gives it back


def test_a_snapshot_says_what_runs_since_when() -> None:
    app = App()
    started, release = threading.Event(), threading.Event()

    @app.task(queue="slow")
    def block() -> None:
        started.set()
        release.wait(60)

    job = block.send()
    worker = Worker(app, {"slow": 2}, name="w1")
    worker.start()
    assert started.wait(60)
    snapshot = worker.snapshot()
    [running] = snapshot.running
    assert (running.id, running.task, running.queue, running.attempt) == (job.id, "block", "slow", 1)
    assert abs(running.started_at - time.time()) < 60
    assert (snapshot.name, snapshot.queues, snapshot.busy, snapshot.held) == ("w1", {"slow": 2}, 1, 1)
    release.set()
    worker.stop()
    [task] = worker.snapshot().tasks
    assert (task.outcomes, sum(task.run.counts), sum(task.wait.counts)) == ({"done": 1}, 1, 1)
    app.close()


def test_middleware_sees_every_job() -> None:
    calls: list[str] = []

    class Record(Middleware):
        def before_enqueue(self, draft: Any) -> None:
            draft.attributes["tenant"] = "x"
            calls.append("before_enqueue")

        def after_enqueue(self, draft: Any, job: Any) -> None:
            calls.append(f"after_enqueue {job.task}")

        def before_process(self, job: Any) -> None:
            calls.append(f"before_process {job.attributes['tenant']}")

        def after_process(self, job: Any, result: Any) -> None:
            calls.append(f"after_process {result}")

        def after_failure(self, job: Any, error: BaseException, retry_in: float | None) -> None:
            calls.append(f"after_failure {error} {retry_in is None}")
            raise RuntimeError("errors of middleware do not reach the job")

    app = App(middleware=[Record()], retries=0)

    @app.task
    def work(fails: bool) -> int:
        if fails:
            raise ValueError("no")
        return 5

    with app.testing() as testing:
        work.send(False)
        work.send(True)
        testing.run()
    assert calls == [
        *("before_enqueue", "after_enqueue work", "before_enqueue", "after_enqueue work"),
        *("before_process x", "after_process 5", "before_process x", "after_failure no True"),
    ]


def test_errors_are_reported_and_traces_passed_on() -> None:
    from openq.worker import ReportErrors, TraceContext

    reported: list[BaseException] = []
    seen: list[Any] = []
    app = App(middleware=[ReportErrors(reported.append), TraceContext()], retries=0)

    @app.task
    def outer() -> None:
        inner.send()
        raise ValueError("no")

    @app.task
    def inner() -> None:
        seen.append(current_job().attributes.get("traceparent"))

    with app.testing() as testing:
        outer.send_with(attributes={"traceparent": "00-abc-def-01"})()
        testing.run()
    assert seen == ["00-abc-def-01"]
    assert [str(error) for error in reported] == ["no"]


def test_a_handler_runs_in_a_span_of_the_trace_of_its_sender() -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    from opentelemetry import trace

    from openq.worker import TraceContext

    spans = memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(spans))
    middleware = TraceContext()
    middleware._api.trace = SimpleNamespace(**{**vars(trace), "get_tracer": provider.get_tracer})
    app = App(middleware=[middleware], retries=0)
    seen: list[int] = []

    @app.task
    async def work(fails: bool) -> None:
        seen.append(trace.get_current_span().get_span_context().trace_id)
        if fails:
            raise ValueError("no")

    with app.testing() as testing:
        with provider.get_tracer("test").start_as_current_span("sender") as sender:
            work.send(False)
            work.send(True)
        testing.run()
    assert seen == [sender.get_span_context().trace_id] * 2
    jobs = [span for span in spans.get_finished_spans() if span.name == "work"]
    assert [span.status.is_ok for span in jobs] == [True, False]
    assert jobs[0].attributes["messaging.destination.name"] == "default"


def test_importing_the_worker_is_cheap() -> None:
    code = (
        "import sys, openq.worker\n"
        "assert 'asyncio' not in sys.modules and 'msgspec' not in sys.modules\n"
        "openq.worker.App\n"
        "assert 'asyncio' not in sys.modules, 'asyncio'\n"
        "assert 'openq.worker.runner' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_app_in_memory_is_shared_by_its_queues() -> None:
    app = App()

    @app.task(queue="a")
    def first() -> None: ...

    @app.task(queue="b")
    def second() -> None: ...

    first.send()
    second.send()
    assert {"a", "a-dead", "b", "b-dead"} <= set(app.queues.open("a").broker.queues())
    assert isinstance(app.queues.open("a"), OpenQ)
    app.close()


def test_jobs_go_on_after_a_restart_of_redis() -> None:
    with single(*FORCED) as server:
        app = App(url=f"{server.url}?profile=fast", reconnect=0.1, lease=2)
        seen: list[int] = []

        @app.task(result_ttl=60)
        def note(number: int) -> int:
            seen.append(number)
            return number

        with Worker(app) as worker:
            assert note.send(1).result(timeout=60) == 1
            server.kill9()
            until(lambda: worker.snapshot().is_unreachable)
            server.start()
            until(lambda: not worker.snapshot().is_unreachable)
            assert note.send(2).result(timeout=60) == 2
            until(lambda: outcomes(worker) == {"done": 2})
        app.close()
    assert seen == [1, 2]


def test_the_wait_of_a_job_does_not_contain_the_receive_call_that_waited_for_it(
    make_app: MakeApp, run_worker: RunWorker
) -> None:
    app = make_app(result_ttl=60)

    @app.task
    def received() -> float:
        return current_job().received

    run_worker(app)
    received.send().result(timeout=30)
    for _ in range(3):  # the receive call that gets the job begins before it is sent
        before = time.monotonic()
        assert received.send().result(timeout=30) >= before
