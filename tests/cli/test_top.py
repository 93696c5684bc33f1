"""`openq top`: what a frame shows, that it fits its terminal, and the live view on a real one."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import sys
import termios
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from openq.cli import top
from openq.cli.commands import load
from openq.cli.top import KEYS
from openq.cli.top_frame import ORDERS, Frame
from openq.cli.top_lines import lines_of, number_text, sparkline
from tests.cli.helpers import run_in_process
from tests.push.streams import opened
from tests.rest.helpers import Client
from tests.serving import Served, served
from tests.waiting import until


def queue(name: str, ready: int = 0, age: float | None = None, **counters: int) -> dict[str, Any]:
    stats = {"ready": ready, "delayed": 0, "in_flight": 0, "oldest_age": age, "counters": counters}
    return {"name": name, "stats": stats}


def frame(queues: list[dict[str, Any]], **parts: Any) -> Frame:
    server = {"version": "1.0", "uptime": 60.0, "healthy": True}
    found = Frame(0.0, server, queues, [], **parts)
    found.rates = {each["name"]: {"published": 0, "delivered": 0, "acked": 0, "nacked": 0} for each in queues}
    return found


ALERT = {
    "alert": "no-consumers",
    "state": "firing",
    "severity": "warning",
    "subject": "orders",
    "server": None,
    "since": "",
    "summary": "",
    "silenced": None,
}


def test_a_frame_fits_a_terminal_of_80_by_24_and_keeps_its_numbers() -> None:
    queues = [queue(f"{'long-' * 20}{number}", ready=10 ** (number % 12)) for number in range(40)]
    alerts = [{**ALERT, "summary": "orders has 1,200 messages and nobody consumes it " * 3}] * 9

    lines = lines_of(frame(queues, alerts=alerts, consumers=Counter()), 80, 22)

    assert len(lines) <= 22
    assert max(map(len, lines)) <= 80
    head = next(line for line in lines if line.startswith("queue"))
    assert head.endswith("failed/s")
    assert sum(line.startswith("... ") for line in lines) == 2
    assert any(line.startswith("no-consumers") for line in lines)


@pytest.mark.parametrize("size", [(20, 5), (1, 1), (300, 100)])
def test_a_frame_fits_any_terminal(size: tuple[int, int]) -> None:
    width, height = size
    lines = lines_of(frame([queue("orders", 3)], alerts=[ALERT]), width, height)

    assert len(lines) <= max(height, 1)
    assert all(len(line) <= width for line in lines)


def test_queues_are_sorted_by_the_chosen_figure() -> None:
    queues = [queue("a", ready=1, age=9.0), queue("b", ready=5), queue("c", ready=3, age=99.0)]
    shown = frame(queues, consumers=Counter(a=2, c=1))
    shown.rates["a"]["nacked"] = 4.0

    def names(order: str) -> str:
        rows = lines_of(shown, 80, None, order)
        return "".join(line[0] for line in rows[3:])

    assert names("name") == "abc"
    assert names("ready") == "bca"
    assert names("age") == "cab"
    assert names("consumers") == "acb"
    assert names("errors") == "abc"
    [option] = [each for each in load("top").options if "--sort" in each.names]
    assert tuple(option.arguments["choices"]) == tuple(ORDERS)
    assert sorted(KEYS.values()) == sorted(ORDERS)
    assert "q" not in KEYS


def test_alerts_are_first_and_the_firing_ones_before_the_others() -> None:
    alerts = [
        {**ALERT, "alert": "later", "state": "pending"},
        {**ALERT, "alert": "now", "severity": "critical"},
    ]
    lines = lines_of(frame([queue("orders")], alerts=alerts), 80, None)

    starts = [line.split()[0] for line in lines if line]
    assert starts == ["OpenQ", "alert", "now", "later", "queue", "orders"]


def test_numbers_and_trends_are_short() -> None:
    assert list(map(number_text, (0, 99_999, 123_456, 1_234_567, 10**12))) == [
        "0",
        "99999",
        "123k",
        "1.235M",
        "1000G",
    ]
    assert sparkline([0, 1, None, 2]) == "▁▅ █"
    assert sparkline([0, None]) == ""


# -- against a server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("top")
    (folder / "openq.toml").write_text("[alerts]\ninterval = 0.1\n")
    with served(folder / "data", "--config", str(folder / "openq.toml")) as found:
        client = Client(found.url)
        client.queue("orders")
        client.queue("mail")
        client.post("/queues/orders/messages", {"payload": "x"})
        yield found


def test_a_frame_as_json_has_queues_consumers_and_the_trend(server: Served) -> None:
    with opened(server.url) as stream:
        stream.subscribe("mail", credit={"messages": 1})
        done = run_in_process("top", "--once", "--json", "--sort", "name", "--url", server.url)

    shown = json.loads(done.out)
    by_name = {each["name"]: each for each in shown["queues"]}
    assert (by_name["mail"]["consumers"], by_name["orders"]["consumers"]) == (1, 0)
    assert by_name["orders"]["stats"]["ready"] == 1
    assert by_name["orders"]["rates"]["published"] == 0
    assert set(shown["trend"]["per_second"]) == {"published", "delivered", "acked", "nacked"}


def test_an_alert_that_fires_is_shown_with_its_subject_and_summary(server: Served) -> None:
    client = Client(server.url)
    rule = {"expression": "queue.ready > 0", "summary": "{queue} holds {value:count}", "severity": "critical"}
    assert client.put("/alerts/rules/holds", rule).status == 200
    until(lambda: client.get("/alerts?state=firing&alert=holds").value["alerts"])
    done = run_in_process("top", "--once", "--url", server.url)
    client.post("/alerts/silences", {"alert": "holds", "subject": "orders"})
    until(lambda: client.get("/alerts?alert=holds").value["alerts"][0]["silenced"])
    silenced = json.loads(run_in_process("top", "--once", "--json", "--url", server.url).out)["alerts"]
    after = run_in_process("top", "--once", "--url", server.url)
    client.delete("/alerts/rules/holds")

    [head, line] = [each for each in done.out.splitlines() if each.startswith(("alert", "holds"))]
    assert head.split() == ["alert", "state", "severity", "subject", "since", "summary"]
    assert re.fullmatch(r"holds +firing +critical +orders +\S+ ?\S* +orders holds 1", line), line
    assert "holds" in {each["alert"] for each in silenced}  # others may be pending
    assert all(set(ALERT) <= set(each) for each in silenced)
    assert re.search(r"^holds +silenced +critical", after.out, re.MULTILINE)


class Terminal:
    """`openq top` on a terminal of its own."""

    def __init__(self, server: Served, columns: int, lines: int) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            os.environ.pop("COLUMNS", None)
            command = [sys.executable, "-m", "openq", "top", "--url", server.url, "--interval", "60s"]
            os.execv(sys.executable, command)
        self.resize(columns, lines)
        self.shown = ""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def read_until(self, pattern: str) -> str:
        """Everything up to a match that is not older than this call."""
        self.shown = ""
        while not re.search(pattern, self.shown):
            self.shown += os.read(self.fd, 65536).decode(errors="replace")
        return self.shown

    def end(self) -> tuple[int, str]:
        while True:
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                break  # the terminal closed with the program
            if not data:
                break
            self.shown += data.decode(errors="replace")
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status), self.shown


def test_a_size_that_changes_during_a_drawing_draws_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    sizes = [os.terminal_size((80, 24))]
    drawn: list[os.terminal_size] = []

    def draw(size: os.terminal_size) -> None:
        drawn.append(size)
        if len(drawn) == 1:
            sizes.append(os.terminal_size((40, 10)))
        else:
            os.write(writer, b"q")

    with open(reader, encoding="utf-8") as keyboard, open(writer, "wb"):
        monkeypatch.setattr("sys.stdin", keyboard)
        monkeypatch.setattr(top, "_terminal_size", lambda: sizes[-1])
        key = top._key_until(time.monotonic() + 600, draw)
    assert (key, drawn) == ("q", sizes)


def test_keys_sort_a_new_size_draws_again_and_ctrl_c_leaves_the_screen_as_it_was(server: Served) -> None:
    terminal = Terminal(server, 80, 24)
    first = terminal.read_until("sorted by load")
    assert "orders" in first
    assert "\x1b[2J" not in first  # the screen is never cleared as a whole: that would flicker
    os.write(terminal.fd, b"a")
    terminal.read_until("sorted by age")
    terminal.resize(40, 10)
    # The footer is on the last line of the new size, cut to its width.
    assert "\x1b[10;1H" in terminal.read_until(r"\x1b\[10;1H.*sorted by age")
    os.kill(terminal.pid, signal.SIGINT)
    code, shown = terminal.end()

    assert code == 0
    assert shown.endswith("\x1b[?25h\x1b[?1049l")
    assert "Traceback" not in shown
