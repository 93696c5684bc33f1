"""`openq kv`: on a server, and on a data directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from openq import OpenQ
from openq.local.broker import LocalBroker
from tests.cli.helpers import CommandResult, run_in_process
from tests.client.thread_server import ThreadServer


@pytest.fixture
def server() -> Iterator[ThreadServer]:
    with ThreadServer(LocalBroker()) as running:
        yield running


def kv(server: ThreadServer, *words: str | Path, answer: str | bytes = "") -> CommandResult:
    return run_in_process("kv", *words, "--url", server.url, answer=answer)


def test_values_are_stored_printed_listed_and_deleted(server: ThreadServer) -> None:
    version = kv(server, "put", "results", "job-1", "done", "--ttl", "1h").out.strip()
    assert kv(server, "put", "results", "job/2", answer=b"\x00\xff").code == 0

    assert int(version) > 0
    assert kv(server, "get", "results", "job-1").out == "done"
    [entry] = [json.loads(kv(server, "get", "results", "job-1", "--json").out)]
    assert (entry["value"], entry["version"], entry["bytes"]) == ("done", int(version), 4)
    assert json.loads(kv(server, "get", "results", "job/2", "--json").out)["value"] == {"base64": "AP8="}
    assert [line.split()[0] for line in kv(server, "ls", "results").out.splitlines()] == [
        "key",
        "job-1",
        "job/2",
    ]
    assert "results" in kv(server, "ls").out
    listed = [json.loads(line) for line in kv(server, "ls", "results", "job-", "--json").out.splitlines()]
    assert [row["key"] for row in listed] == ["job-1"]
    assert "more keys" in kv(server, "ls", "results", "-n", "1").err
    assert kv(server, "rm", "results", "job-1", "job/2", "other").out == "2 keys deleted\n"
    assert kv(server, "rm", "results", "job-1").code == 5


def test_a_missing_key_and_a_conflict_have_exit_codes(server: ThreadServer) -> None:
    missing = kv(server, "get", "results", "job-1")
    assert missing.code == 3
    assert "openq kv ls" in missing.err
    version = kv(server, "put", "results", "k", "1", "--if-absent").out.strip()
    refused = kv(server, "put", "results", "k", "2", "--if-absent")
    assert refused.code == 1
    assert f"has version {version}" in refused.err
    assert kv(server, "put", "results", "k", "2", "--version", "99").code == 1
    assert kv(server, "put", "results", "k", "2", "--version", version).code == 0
    assert kv(server, "put", "results", "k", "", "--ttl", "0").code == 1
    assert kv(server, "put", "results", "k" * 600, "x").code == 1
    assert kv(server, "get", "results", "k", "--wait", "10ms", "--version", "99").code == 3


def test_a_data_directory_is_read_without_a_server(tmp_path: Path) -> None:
    with OpenQ("jobs", path=tmp_path / "data") as queue:
        queue.kv("results").put("job-1", "done")

    def read(*words: str) -> str:
        return run_in_process("kv", *words, "--data", tmp_path / "data").out

    assert read("get", "results", "job-1") == "done"
    assert "job-1" in read("ls", "results")
    assert json.loads(read("ls", "--json"))["keys"] == 1
