"""`openq config` and `openq doctor`."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from openq.cli.doctor import listening_process
from openq.config import KEYS, load
from openq.journal.lockfile import DirectoryLock
from tests.cli.helpers import CommandResult, run_in_process
from tests.serving import free_port


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_new_file_is_valid_and_never_overwritten() -> None:
    done = run_in_process("config", "init")

    assert (done.code, done.out) == (0, "openq.toml\n")
    assert run_in_process("config", "check").out == "openq.toml: ok, 0 keys and 0 queues\n"
    Path("openq.toml").write_text("port = 7\n")
    assert run_in_process("config", "init").code == 1
    assert Path("openq.toml").read_text() == "port = 7\n"
    assert json.loads(run_in_process("config", "init", "other.toml", "--json").out) == {"file": "other.toml"}


def test_every_value_is_shown_with_its_origin() -> None:
    Path("openq.toml").write_text('port = 7\n[queues."a b"]\ndlq = "dead"\n')
    done = run_in_process("config", "show", "--origin", "--host", "::1", OPENQ_REGION="eu-west-1")
    rows = {line.split()[0]: line for line in done.out.splitlines()}

    assert rows["port"].split(maxsplit=2) == ["port", "7", "openq.toml: port"]
    assert rows["host"].endswith("flag --host")
    assert rows["region"].endswith("environment variable OPENQ_REGION")
    assert rows["data"].endswith("default")
    assert rows.keys() >= KEYS.keys()
    printed = json.loads(run_in_process("config", "show", "--json").out)
    assert printed["port"] == {"value": 7, "origin": "openq.toml: port"}
    assert printed['queues."a b"']["value"] == {"dead_letter": "dead"}


@pytest.mark.parametrize("flag", ["--memory", "--no-memory"])
def test_the_output_of_show_is_a_valid_file(flag: str, tmp_path: Path) -> None:
    Path("openq.toml").write_text("[queues.q]\nretry = {base = 5}\n")
    shown = run_in_process("config", "show", flag, "--port", "7").out
    file = tmp_path / "shown.toml"
    file.write_text(shown)
    config = load({}, {}, file)

    assert (config.port, config.memory) == (7, flag == "--memory")
    assert config.queues["q"]["retry"].base_ms == 5000


def test_a_mistake_in_the_file_or_the_environment_is_reported() -> None:
    Path("bad.toml").write_text("prot = 7\n")

    wrong = run_in_process("config", "check", "bad.toml")
    assert (wrong.code, wrong.out) == (2, "")
    assert "bad.toml: unknown key 'prot'; did you mean 'port'?" in wrong.err
    assert run_in_process("config", "check", OPENQ_PORT="x").code == 2
    assert run_in_process("config", "check", "none.toml").code == 3
    assert run_in_process("config", "check").out == "ok: no file, and the environment is valid\n"
    assert json.loads(run_in_process("config", "check", "--json").out)["ok"] is True


def test_a_check_counts_keys_and_variables() -> None:
    Path("good.toml").write_text("port = 7\nmemory = true\n[queues.a]\n[queues.b]\n")

    assert run_in_process("config", "check", "good.toml").out == "good.toml: ok, 2 keys and 2 queues\n"
    beside = {"OPENQ_PORT": "8", "OPENQ_DATA": "elsewhere"}
    printed = run_in_process("config", "check", "good.toml", **beside)
    assert printed.out == "good.toml: ok, 2 keys and 2 queues; 2 variables from the environment\n"
    counted = json.loads(run_in_process("config", "check", "good.toml", "--json", **beside).out)
    assert (counted["keys"], counted["variables"], counted["queues"]) == (2, 2, 2)


# -- doctor -------------------------------------------------------------------------------------


def doctor(*words: str | Path, **environment: str) -> CommandResult:
    own = {"OPENQ_PORT": str(free_port()), **environment}
    return run_in_process("doctor", "--url", f"http://127.0.0.1:{free_port()}", *words, **own)


def findings(*words: str | Path, **environment: str) -> dict[str, tuple[str, str]]:
    printed = json.loads(doctor(*words, "--json", **environment).out)
    return {row["check"]: (row["verdict"], row["detail"]) for row in printed}


def test_the_doctor_passes_and_changes_nothing(tmp_path: Path) -> None:
    done = doctor()

    assert done.code == 0
    assert {line.split()[1] for line in done.out.splitlines()} == {
        *("config", "python", "packages", "disk", "sync", "limits", "port", "clock", "server")
    }
    assert list(tmp_path.iterdir()) == []


def test_a_taken_port_is_reported_with_its_process() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as listener:
        port = listener.getsockname()[1]
        verdict, detail = findings(OPENQ_PORT=str(port))["port"]

        assert listening_process(port) is not None
    assert verdict == "warning"
    assert f"{port} is taken by process {os.getpid()}" in detail
    assert listening_process(port) is None


def test_a_data_directory_in_use_is_reported_with_its_process(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    lock = DirectoryLock(str(data), 0)
    lock.announce("http://127.0.0.1:9999")
    before = (data / "LOCK").read_bytes()

    assert findings("--data", data)["data"] == (
        "warning",
        f"{data} is in use by process {os.getpid()}, which serves http://127.0.0.1:9999",
    )
    assert (data / "LOCK").read_bytes() == before
    lock.release()
    assert "data" not in findings("--data", data)


def test_a_wrong_configuration_is_found_first() -> None:
    done = doctor(OPENQ_PORT="x")

    assert done.code == 1
    assert done.out.startswith("failed  config")


def test_a_directory_that_cannot_be_written_is_a_failure() -> None:
    verdict, detail = findings("--data", "/proc/openq-data")["sync"]

    assert verdict == "failed"
    assert "/proc cannot be written" in detail
