"""`openq worker MODULE:APP`: processes, signals, crashes. Real processes, a real server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from openq import OpenQ
from openq.worker import App
from tests.serving import Served, served
from tests.waiting import WAIT_S, until
from tests.worker.service import WorkerService, worker

MODULE = """
import ctypes, os, threading, time
from pathlib import Path
from openq.worker import App

app = App(url=os.environ.get("BROKER"), path=os.environ.get("DIRECTORY"), lease=2)
VERSION = 1
{extra}

@app.task(queue="jobs")
def mark(number: int) -> None:
    Path("done", f"{{number}}-{{os.getpid()}}").write_text(str(VERSION))

@app.task(queue="jobs")
def wait(number: int) -> None:
    Path("started", str(number)).touch()
    while not Path("go").exists():
        time.sleep(0.01)
    Path("done", f"{{number}}-{{os.getpid()}}").touch()

@app.task(queue="jobs", hard_timeout=1, retries=0)
def hang(number: int) -> None:
    Path("started", str(number)).touch()
    threading.Event().wait()

@app.task(queue="jobs", hard_timeout=1, retries=0)
def seize(number: int) -> None:
    if Path("started", str(number)).exists():
        return  # delivered again
    Path("started", str(number)).touch()
    ctypes.PyDLL(None).sleep(600)  # with the interpreter's lock: no other thread runs
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


class Project:
    """A directory with an application, and another view of its queues."""

    def __init__(self, folder: Path, url: str | None) -> None:
        self.folder = folder
        self.env = {} if url is None else {"BROKER": url}
        self.write()
        for name in ("done", "started"):
            (folder / name).mkdir()
        self.app = App(url=url)

        @self.app.task(queue="jobs")
        def mark(number: int) -> None: ...

        @self.app.task(queue="jobs")
        def wait(number: int) -> None: ...

        @self.app.task(queue="jobs", retries=0)
        def hang(number: int) -> None: ...

        @self.app.task(queue="jobs", retries=0)
        def seize(number: int) -> None: ...

        self.mark, self.wait, self.hang, self.seize = mark, wait, hang, seize

    def write(self, extra: str = "", version: int = 1) -> None:
        text = MODULE.format(extra=extra).replace("VERSION = 1", f"VERSION = {version}")
        (self.folder / "shop.py").write_text(text)

    def names(self, folder: str) -> set[str]:
        return {name.partition("-")[0] for name in os.listdir(self.folder / folder)}

    def pids(self) -> set[int]:
        return {int(name.partition("-")[2]) for name in os.listdir(self.folder / "done")}

    def until_done(self, count: int) -> None:
        until(lambda: len(self.names("done")) >= count)

    def queue(self, name: str = "jobs") -> OpenQ:
        return self.app.queues.open(name)

    def until_started(self, count: int) -> None:
        until(lambda: len(self.names("started")) >= count)


@pytest.fixture
def project(server: Served, tmp_path: Path) -> Iterator[Project]:
    found = Project(tmp_path, server.url)
    found.queue()
    yield found
    for name in ("jobs", "jobs-dead"):
        found.queue(name).purge()
    found.app.close()


def processes(service: WorkerService) -> set[int]:
    """The pids of its worker processes, from its log."""
    found = set()
    for line in service.log:
        fields = json.loads(line) if line.startswith("{") else {}
        if "." in fields.get("worker", "").removeprefix(service.name):
            found.add(fields["pid"])
    return {pid for pid in found if _exists(pid)}


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_several_processes_run_the_tasks(project: Project) -> None:
    with worker(project.folder, "shop:app", "--processes", "2", env=project.env) as service:
        for number in range(50):
            project.mark.send(number)
        project.until_done(50)

        assert len(processes(service)) == 2
        assert service.get("/readyz") == (200, "ready\n")
        until(lambda: service.metric('openq_worker_jobs_total{task="mark"') == 50)
        service.signal(signal.SIGTERM)
        assert service.wait() == 0, service.log

    assert service.lines[-1]["event"] == "stopped"


def test_the_jobs_of_a_killed_process_return_and_nothing_is_lost(project: Project) -> None:
    with worker(project.folder, "shop:app", "--processes", "2", "--threads", "2", env=project.env) as service:
        for number in range(4):
            project.wait.send(number)
        project.until_started(4)
        for number in range(4, 40):
            project.mark.send(number)
        victim = min(processes(service))
        os.kill(victim, signal.SIGKILL)
        until(lambda: service.logged("killed by SIGKILL"))
        (project.folder / "go").touch()

        project.until_done(40)
        until(lambda: len(processes(service)) == 2)
        until(lambda: service.get("/readyz")[0] == 200)
        assert service.metric("openq_worker_process_restarts_total") == 1

    assert project.names("done") == {str(number) for number in range(40)}
    assert victim not in project.pids()


def test_sigterm_finishes_what_runs_and_gives_back_the_rest_at_once(project: Project) -> None:
    with worker(project.folder, "shop:app", "--threads", "1", "--prefetch", "5", env=project.env) as service:
        project.wait.send(1)
        project.until_started(1)
        for number in (2, 3, 4):
            project.wait.send(number)
        service.signal(signal.SIGTERM)

        # The others are with no worker while the first one still runs.
        until(lambda: project.queue().stats().ready == 3)
        assert service.get("/readyz") == (503, "not ready: stopping\n")
        assert service.process.poll() is None
        (project.folder / "go").touch()
        assert service.wait() == 0, service.log

    assert project.names("started") == project.names("done") == {"1"}
    assert project.queue().stats().in_flight == 0


def test_a_second_sigterm_gives_back_everything_at_once(project: Project) -> None:
    with worker(project.folder, "shop:app", "--grace", "1h", env=project.env) as service:
        project.wait.send(1)
        project.until_started(1)
        service.signal(signal.SIGTERM)
        until(lambda: service.logged("SIGTERM: "))
        service.signal(signal.SIGTERM)
        assert service.wait() == 0, service.log

    assert project.names("done") == set()
    [message] = project.queue().queue
    assert message.receive_count == 0


def test_sighup_replaces_every_process_and_loses_nothing(project: Project) -> None:
    with worker(project.folder, "shop:app", "--processes", "2", env=project.env) as service:
        project.wait.send(0)
        project.until_started(1)
        old = processes(service)
        project.write(version=22)
        service.signal(signal.SIGHUP)
        for number in range(1, 100):
            project.mark.send(number)
        project.until_done(99)
        until(lambda: len(processes(service) - old) == 2)
        # The job of an old process still runs; the other one has ended.
        until(lambda: len(processes(service)) == 3)
        until(lambda: service.metric('openq_worker_processes{state="stopping"}') == 1)
        project.mark.send(1000)
        until(lambda: "1000" in project.names("done"))
        [made] = [path for path in (project.folder / "done").iterdir() if path.name.startswith("1000-")]

        assert made.read_text() == "22"
        assert service.get("/readyz")[0] == 200
        (project.folder / "go").touch()
        project.until_done(101)
        until(lambda: not processes(service) & old)

    assert project.queue().stats().ready == project.queue().stats().in_flight == 0


def test_a_restart_with_broken_code_keeps_the_old_processes(project: Project) -> None:
    with worker(project.folder, "shop:app", env=project.env) as service:
        old = processes(service)
        (project.folder / "shop.py").write_text("raise RuntimeError('broken')\n")
        service.signal(signal.SIGHUP)
        until(lambda: service.logged("not restarted, the old processes keep running"))
        project.mark.send(1)
        project.until_done(1)

        assert project.pids() == old
        project.write()
        service.signal(signal.SIGHUP)
        until(lambda: processes(service) and not processes(service) & old)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import os\n\nraise ValueError('no database')\n", "shop.py:3: ValueError: no database"),
        ("app = (\n", "shop.py:1: SyntaxError: '(' was never closed"),
        ("import missing_module\n", "shop.py:1: ModuleNotFoundError: No module named 'missing_module'"),
        ("from openq.worker import App\nother = App()\n", "has no 'app'; it has shop:other"),
        ("app = 5\n", "shop:app is not an openq.worker.App, but int"),
        ("raise SystemExit(3)\n", "module 'shop' exited with 3 when it was imported"),
    ],
)
def test_an_application_that_cannot_be_loaded_ends_the_service_with_one_line(
    tmp_path: Path, text: str, error: str
) -> None:
    (tmp_path / "shop.py").write_text(text)

    for flags in ([], ["--no-preload"]):
        ended = subprocess.run(
            [sys.executable, "-m", "openq", "worker", "shop:app", *flags],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=WAIT_S,
        )

        assert ended.returncode == 1
        assert len(ended.stderr.splitlines()) == 1, ended.stderr
        assert ended.stderr.endswith(f"{error}\n")


def test_jobs_go_on_after_the_server_was_gone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (tmp_path / "project").mkdir()
    with served(data) as first:
        port = first.port
        project = Project(tmp_path / "project", first.url)
        project.queue()
    with worker_without_server(project) as service:
        until(lambda: service.logged("cannot start"))
        with served(data, port=port):
            service.wait_ready()
            project.mark.send(1)
            project.until_done(1)
        until(lambda: "cannot reach its broker" in service.get("/readyz")[1])
        with served(data, port=port):
            project.mark.send(2)
            project.until_done(2)
            until(lambda: service.get("/readyz")[0] == 200)
            service.signal(signal.SIGTERM)
            assert service.wait() == 0, service.log
            project.app.close()


class worker_without_server:
    """A service that is not ready yet."""

    def __init__(self, project: Project) -> None:
        env = {**project.env, "OPENQ_RECONNECT": "1"}
        self.service = WorkerService(project.folder, "shop:app", env=env)

    def __enter__(self) -> WorkerService:
        return self.service

    def __exit__(self, *_: object) -> None:
        self.service.close()


def test_a_process_is_replaced_after_its_tasks(project: Project) -> None:
    with worker(
        project.folder, "shop:app", "--max-tasks", "10", "--threads", "1", "--prefetch", "0", env=project.env
    ) as service:
        for number in range(30):
            project.mark.send(number)
        project.until_done(30)
        until(lambda: service.logged("is replaced: it has run"))
        project.mark.send(30)
        project.until_done(31)

    assert len(project.pids()) > 1
    assert project.queue().stats().in_flight == 0


def test_a_process_is_replaced_when_it_uses_too_much_memory(project: Project) -> None:
    with worker(project.folder, "shop:app", "--max-memory", "1MiB", env=project.env) as service:
        project.mark.send(1)
        until(lambda: service.logged("MiB of memory"))
        project.mark.send(2)
        project.until_done(2)


@pytest.mark.parametrize("task", ["hang", "seize"])
def test_a_job_over_its_hard_limit_ends_its_process(project: Project, task: str) -> None:
    with worker(project.folder, "shop:app", "--threads", "2", env=project.env) as service:
        getattr(project, task).send(1)
        project.until_started(1)
        until(lambda: service.logged("hard limit of 1 s" if task == "hang" else "does not respond"))
        project.mark.send(2)
        project.until_done(1)
        if task == "hang":
            [letter] = project.queue("jobs-dead").queue
            assert letter.deaths[0]["reason"] == "TimeLimitExceeded: longer than the hard limit of 1 s"
        assert service.metric("openq_worker_process_restarts_total") >= 1


def test_one_process_owns_a_data_directory(tmp_path: Path) -> None:
    project = Project(tmp_path, None)
    env = {**os.environ, "DIRECTORY": "data"}

    ended = subprocess.run(
        [sys.executable, "-m", "openq", "worker", "shop:app", "--processes", "2"],
        capture_output=True,
        text=True,
        cwd=project.folder,
        env=env,
        timeout=WAIT_S,
    )

    assert ended.returncode == 1
    assert "one process owns the data directory data; run `openq serve --data data`" in ended.stderr


def test_an_application_with_a_data_directory_restarts_in_turn(tmp_path: Path) -> None:
    project = Project(tmp_path, None)
    schedule = "mark_at_start = True\n"
    with worker(project.folder, "shop:app", env={"DIRECTORY": "data"}) as service:
        old = processes(service)
        project.write(schedule, version=2)
        service.signal(signal.SIGHUP)
        until(lambda: processes(service) and not processes(service) & old)
        until(lambda: service.get("/readyz")[0] == 200)
        service.signal(signal.SIGTERM)
        assert service.wait() == 0, service.log


@pytest.mark.parametrize(
    "extra",
    ["threading.Thread(target=time.sleep, args=(600,), daemon=True).start()", "app.queues.open('jobs')"],
)
def test_an_import_that_leaves_something_open_is_done_in_each_process(project: Project, extra: str) -> None:
    project.write(extra)

    with worker(project.folder, "shop:app", env=project.env) as service:
        project.mark.send(1)
        project.until_done(1)

    assert service.logged("each process imports shop:app itself: it ")


def test_reload_restarts_when_a_file_changes(project: Project) -> None:
    with worker(project.folder, "shop:app", "--reload", env=project.env) as service:
        old = processes(service)
        project.write(version=20)
        until(lambda: processes(service) and not processes(service) & old)
        project.mark.send(1)
        project.until_done(1)

    [made] = (project.folder / "done").iterdir()
    assert made.read_text() == "20"


def test_processes_end_by_themselves_when_their_supervisor_is_killed(project: Project) -> None:
    with worker(project.folder, "shop:app", "--processes", "2", env=project.env) as service:
        project.wait.send(1)
        project.until_started(1)
        alive = processes(service)
        service.process.kill()
        (project.folder / "go").touch()

        until(lambda: not processes(service) & alive)

    assert project.names("done") == {"1"}


def test_ctrl_c_finishes_what_runs(project: Project) -> None:
    """A terminal sends it to every process of the group."""
    with worker(project.folder, "shop:app", "--processes", "2", env=project.env, group=True) as service:
        project.wait.send(1)
        project.until_started(1)
        os.killpg(service.process.pid, signal.SIGINT)
        until(lambda: service.logged("SIGINT: jobs that run may finish within 30 s"))
        (project.folder / "go").touch()
        assert service.wait() == 0, service.log

    assert project.names("done") == {"1"}


def test_a_template_that_was_killed_is_replaced(project: Project) -> None:
    with worker(project.folder, "shop:app", env=project.env) as service:
        until(lambda: len(processes(service)) == 1, "its process has logged")  # a thread reads the log
        [old] = processes(service)
        template = int(Path(f"/proc/{old}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(template, signal.SIGKILL)
        until(lambda: service.logged("the template process ended unexpectedly (killed by SIGKILL)"))
        project.mark.send(1)
        project.until_done(1)
        assert project.pids() == {old}
        os.kill(old, signal.SIGKILL)
        project.mark.send(2)
        project.until_done(2)
        until(lambda: service.get("/readyz")[0] == 200)


def test_a_process_that_dies_while_the_new_code_is_imported_is_replaced(project: Project) -> None:
    with worker(project.folder, "shop:app", env=project.env) as service:
        until(lambda: len(processes(service)) == 1, "its process has logged")  # a thread reads the log
        [old] = processes(service)
        slow = (
            "Path('importing').touch()\nwhile not Path('go').exists(): time.sleep(0.01)\nraise RuntimeError"
        )
        project.write(slow)
        service.signal(signal.SIGHUP)
        until((project.folder / "importing").exists)
        os.kill(old, signal.SIGKILL)
        project.mark.send(1)
        project.until_done(1)

        assert old not in project.pids()
        (project.folder / "go").touch()
        until(lambda: service.logged("not restarted, the old processes keep running"))
        assert service.get("/readyz")[0] == 200
