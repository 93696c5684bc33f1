"""What Redis may lose, asked of real servers that are set in different ways."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import pytest

from openq import OpenQ
from openq.errors import InvalidSetting, StoreError
from openq.metrics import render
from openq.redis.broker import RedisBroker
from openq.redis.net.url import parse
from openq.redis.safety import (
    SafetyReport,
    ServerInfo,
    evaluate,
    loss_window,
    loss_window_gauges,
    read_server_info,
    refuse_unsafe,
)
from openq.redis.server_check import check_servers, command_line
from tests.cli.helpers import run_in_process, run_openq
from tests.redis import servers
from tests.redis.servers import FORCED, Server, ServerKind, fake_server
from tests.serving import free_port
from tests.waiting import until

EVERYSEC = ("--appendonly", "yes", "--appendfsync", "everysec")


def report_of(server: Server, profile: str = "safe") -> SafetyReport:
    return evaluate(read_server_info(server.ask), profile)


def verdicts(report: SafetyReport) -> dict[str, str]:
    return {finding.setting: finding.verdict for finding in report.findings}


def windows(report: SafetyReport) -> dict[str, float]:
    return {line.fault: line.seconds for line in loss_window(report)}


@pytest.fixture(params=servers.versions(), ids=str)
def kind(request: pytest.FixtureRequest) -> ServerKind:
    found: ServerKind = request.param
    return found


@pytest.fixture
def forced(kind: ServerKind) -> Iterator[Server]:
    with servers.single(*FORCED, program=kind.path) as server:
        yield server


def test_a_server_that_syncs_every_answer_is_safe(forced: Server, kind: ServerKind) -> None:
    report = report_of(forced)

    assert refuse_unsafe(report) == []
    assert set(verdicts(report).values()) == {"ok"}
    assert report.nodes[0].product.lower() == kind.name
    assert report.nodes[0].version == kind.version
    assert windows(report) == {
        "process_killed": 0.0,
        "power_loss": 0.0,
        "failover": 0.0,
        "network_split": 0.0,
        "disk_lost": math.inf,
    }


def test_a_server_without_a_file_is_refused_and_the_command_that_helps_works(kind: ServerKind) -> None:
    with servers.single(program=kind.path) as server:
        with pytest.raises(InvalidSetting) as refused:
            refuse_unsafe(check_servers(parse(server.url)))

        assert "appendonly no" in str(refused.value)
        assert f"`redis-cli -h 127.0.0.1 -p {server.port} config set appendonly yes`" in str(refused.value)
        assert f"`redis-cli -h 127.0.0.1 -p {server.port} config rewrite`" in str(refused.value)
        server.ask("CONFIG", "SET", "appendonly", "yes")
        server.ask("CONFIG", "SET", "appendfsync", "always")
        assert refuse_unsafe(report_of(server)) == []


def test_everything_that_is_wrong_is_named_at_once(kind: ServerKind) -> None:
    options = ("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    with servers.single(*options, program=kind.path) as server, pytest.raises(InvalidSetting) as refused:
        refuse_unsafe(report_of(server))

    assert "appendonly no" in str(refused.value)
    assert "config set maxmemory-policy noeviction`" in str(refused.value)


def test_fast_starts_on_such_a_server_and_says_what_may_be_lost(kind: ServerKind) -> None:
    with servers.single(program=kind.path) as server:
        report = report_of(server, "fast")

    warnings = refuse_unsafe(report)
    assert any("the Redis process is killed: without bound" in warning for warning in warnings)
    assert windows(report)["process_killed"] == math.inf


def test_snapshots_alone_bound_what_is_lost_by_their_interval() -> None:
    with servers.single() as server:
        server.ask("CONFIG", "SET", "save", "3600 1 300 100")
        often = windows(report_of(server, "fast"))
        server.ask("CONFIG", "SET", "save", "300 100")
        seldom = windows(report_of(server, "fast"))

    assert often["process_killed"] == often["power_loss"] == 3600.0
    assert seldom["power_loss"] == math.inf  # fewer than a hundred changes are never saved


def test_a_sync_each_second_loses_up_to_two_seconds_with_the_power(kind: ServerKind) -> None:
    with servers.single(*EVERYSEC, program=kind.path) as server:
        safe, fast = report_of(server), report_of(server, "fast")

    refuse_unsafe(safe)
    assert windows(safe)["power_loss"] == 2.0
    assert verdicts(safe)["appendfsync"] == "warning"
    assert windows(fast)["power_loss"] == 2.0
    assert "a power cut may take up to 2 s" in "\n".join(refuse_unsafe(fast))


def test_a_file_that_the_system_syncs_when_it_likes_is_refused() -> None:
    with servers.single("--appendonly", "yes", "--appendfsync", "no") as server:
        with pytest.raises(InvalidSetting, match="appendfsync no"):
            refuse_unsafe(report_of(server))
        assert windows(report_of(server, "fast")) == {
            "process_killed": 0.0,
            "power_loss": 30.0,
            "failover": 0.0,
            "network_split": 0.0,
            "disk_lost": math.inf,
        }


def test_eviction_is_only_a_warning_while_there_is_no_limit_to_reach() -> None:
    with servers.single(*FORCED, "--maxmemory-policy", "volatile-lru") as server:
        [warning] = refuse_unsafe(report_of(server))
        server.ask("CONFIG", "SET", "maxmemory", "100mb")

        assert "maxmemory-policy volatile-lru" in warning
        with pytest.raises(InvalidSetting, match="would evict messages"):
            refuse_unsafe(report_of(server))


def test_where_config_is_forbidden_the_unknown_is_said_and_the_known_still_judged(kind: ServerKind) -> None:
    with servers.single(*FORCED, program=kind.path) as server:
        server.ask("ACL", "SETUSER", "default", "-config")
        unknown = report_of(server)

        assert verdicts(unknown)["appendonly"] == "ok"
        assert verdicts(unknown)["maxmemory-policy"] == "ok"
        assert verdicts(unknown)["appendfsync"] == "unknown"
        reported = "\n".join(refuse_unsafe(unknown))
        assert "CONFIG GET is refused (NOPERM" in reported
        assert "appendfsync unknown: it must be always or everysec" in reported
    with servers.single(program=kind.path) as server:
        server.ask("ACL", "SETUSER", "default", "-config")

        with pytest.raises(InvalidSetting, match="appendonly no"):
            refuse_unsafe(report_of(server))
        assert math.isnan(windows(report_of(server, "fast"))["power_loss"])


def test_replicas_that_are_waited_for_leave_nothing_to_lose_in_a_failover(kind: ServerKind) -> None:
    with servers.replicated(2, *FORCED, program=kind.path) as both:
        servers.until_reachable(
            lambda: len(read_server_info(both.master.ask).lags_s) == 2, "both replicas are online"
        )
        safe, fast = report_of(both.master), report_of(both.master, "fast")
        both.master.ask("CONFIG", "SET", "min-replicas-to-write", "1")
        guarded_safe, guarded_fast = report_of(both.master), report_of(both.master, "fast")
        replica = report_of(both.replicas[0])

    assert len(safe.nodes[0].lags_s) == 2
    assert (windows(safe)["failover"], windows(safe)["disk_lost"]) == (0.0, 0.0)
    assert windows(safe)["network_split"] == math.inf
    assert "a master that is cut off goes on taking writes" in "\n".join(refuse_unsafe(safe))
    assert windows(guarded_safe)["network_split"] == 0.0
    assert refuse_unsafe(guarded_safe) == []
    assert windows(fast)["failover"] >= 1.0
    assert windows(fast)["network_split"] == math.inf
    assert windows(guarded_fast)["network_split"] == windows(guarded_fast)["failover"] == 10.0
    with pytest.raises(InvalidSetting, match="name its master"):
        refuse_unsafe(replica)


def test_the_worst_master_of_a_cluster_counts() -> None:
    with servers.cluster(3, 1, *FORCED) as cluster:
        servers.until_reachable(
            lambda: all(read_server_info(each.ask).lags_s for each in cluster.masters()),
            "replicas are online",
        )
        infos = [read_server_info(each.ask, f"127.0.0.1:{each.port}") for each in cluster.masters()]
        safe, fast = evaluate(infos), evaluate(infos, "fast")
        cluster.masters()[1].ask("CONFIG", "SET", "appendfsync", "no")
        mixed = evaluate([read_server_info(each.ask, f"127.0.0.1:{each.port}") for each in cluster.masters()])
        odd = cluster.masters()[1].port

    assert refuse_unsafe(safe) == []
    assert windows(safe) == dict.fromkeys(windows(safe), 0.0)
    assert windows(fast)["network_split"] == 2.5
    [wrong] = mixed.failures
    assert str(wrong).startswith(f"127.0.0.1:{odd}: appendfsync no")


def test_a_server_that_is_too_old_is_refused_in_both_profiles() -> None:
    info = ServerInfo(
        "Redis", (6, 2, 14), {"appendonly": "yes", "appendfsync": "always"}, "master", (), False
    )

    for profile in ("safe", "fast"):
        with pytest.raises(InvalidSetting, match=r"Redis 6\.2\.14 is too old: OpenQ needs Redis 7\.0"):
            refuse_unsafe(evaluate(info, profile))


def test_an_unreachable_server_is_not_taken_for_one_that_hides_its_settings(forced: Server) -> None:
    def call(*words: str) -> object:
        if words[0] == "CONFIG":
            raise ConnectionResetError("gone")
        return forced.ask(*words)

    with pytest.raises(ConnectionResetError):
        read_server_info(call)


def test_an_unknown_profile_is_refused(forced: Server) -> None:
    with pytest.raises(InvalidSetting, match="safe or fast"):
        report_of(forced, "quick")


def test_the_loss_window_is_a_metric(forced: Server) -> None:
    text = render(loss_window_gauges(report_of(forced))).decode()

    assert 'openq_store_loss_window_seconds{fault="power_loss"} 0.0' in text
    assert 'openq_store_loss_window_seconds{fault="disk_lost"} +Inf' in text


def test_an_error_in_the_file_of_changes_is_seen(forced: Server) -> None:
    def call(*words: str) -> object:
        said = forced.ask(*words)
        return (
            said.replace("aof_last_write_status:ok", "aof_last_write_status:err")
            if words[0] == "INFO"
            else said
        )

    with pytest.raises(InvalidSetting, match="the last write to that file failed"):
        refuse_unsafe(evaluate(read_server_info(call)))


# -- behind a URL -------------------------------------------------------------------------------


def test_the_master_that_sentinels_name_is_asked() -> None:
    with servers.sentinel(1, *FORCED) as watched:
        report = check_servers(parse(watched.url))

    assert report.nodes[0].role == "master"
    assert refuse_unsafe(report)[0].startswith("min-replicas-to-write 0")


def test_every_master_of_a_cluster_is_asked() -> None:
    with servers.cluster(3, 0, *FORCED) as cluster:
        report = check_servers(parse(cluster.url), "fast")

    assert sorted(node.node for node in report.nodes) == sorted(
        f"127.0.0.1:{s.port}" for s in cluster.servers
    )
    assert report.profile == "fast"


def test_a_number_of_copies_that_is_not_all_of_them_is_judged() -> None:
    with servers.replicated(2, *FORCED) as both:
        servers.until_reachable(
            lambda: len(read_server_info(both.master.ask).lags_s) == 2, "both replicas are online"
        )
        fewer, more = (check_servers(parse(f"{both.url}?replicas={copies}")) for copies in (1, 3))

    assert windows(fewer)["failover"] >= 1.0
    assert verdicts(fewer)["replicas"] == "warning"
    with pytest.raises(InvalidSetting, match="every publish would fail"):
        refuse_unsafe(more)


def test_an_unreachable_server_and_a_wrong_password_are_distinguished(forced: Server) -> None:
    with pytest.raises(ConnectionError, match="does not answer"):
        check_servers(parse(f"redis://127.0.0.1:{free_port()}"))
    forced.ask("CONFIG", "SET", "requirepass", "right")
    with pytest.raises(ConnectionError, match="refuses the login"):
        check_servers(parse(forced.url.replace("//", "//:wrong@")))
    assert "right" not in str(parse(forced.url.replace("//", "//:right@")))
    assert check_servers(parse(forced.url.replace("//", "//:right@"))).failures == []


@pytest.mark.parametrize("speaks", [True, False], ids=["http", "silent"])
def test_a_url_of_another_program_is_one_line_and_a_typed_error(speaks: bool) -> None:
    with fake_server(speaks=speaks) as port:
        url = f"redis://127.0.0.1:{port}?timeout={30 if speaks else 0.3}"
        wanted = rf"redis://127.0.0.1:{port} does not answer{' as Redis does' if speaks else ''}: "
        nowhere = ("--url", f"http://127.0.0.1:{free_port()}")

        doctor = run_in_process("doctor", "--store", url, *nowhere, OPENQ_PORT=str(free_port()))
        serve = run_openq("serve", "--port", "0", "--amqp-port", "off", "--store", url)
        with pytest.raises(StoreError, match=wanted):
            OpenQ("a", url=url).put(b"x")

    assert (doctor.code, doctor.err) == (1, "")
    assert [line for line in doctor.out.splitlines() if wanted in line and line.startswith("failed")]
    assert (serve.code, serve.out, serve.err.count("\n")) == (1, "", 1)
    assert wanted in serve.err


def test_doctor_reports_the_loss_window_and_what_to_do(forced: Server) -> None:
    def doctor(*words: str) -> tuple[int, str]:
        nowhere = f"http://127.0.0.1:{free_port()}"
        done = run_in_process("doctor", "--url", nowhere, "--json", *words, OPENQ_PORT=str(free_port()))
        rows = json.loads(done.out)
        return done.code, "\n".join(f"{row['verdict']} {row['check']} {row['detail']}" for row in rows)

    code, text = doctor("--store", forced.url)
    assert code == 0
    assert "ok loss its machine loses power: nothing; every change was on disk" in text
    forced.ask("CONFIG", "SET", "appendonly", "no")
    code, text = doctor("--store", forced.url)
    assert code == 1
    assert "failed redis appendonly no" in text
    assert f"`redis-cli -h 127.0.0.1 -p {forced.port} config set appendonly yes`" in text
    code, text = doctor("--store", forced.url, "--profile", "fast")
    assert code == 0
    assert "warning loss its machine loses power: without bound" in text
    code, text = doctor("--store", f"redis://127.0.0.1:{free_port()}")
    assert code == 1
    assert "does not answer" in text
    assert doctor("--store", "mysql://x")[0] == 1


def test_doctor_finds_the_store_in_the_environment_too(forced: Server) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    done = run_in_process("doctor", "--url", nowhere, OPENQ_STORE=forced.url, OPENQ_PORT=str(free_port()))

    assert done.code == 0
    assert "its machine loses power: nothing" in done.out
    assert "disk" not in {line.split()[1] for line in done.out.splitlines()}  # nothing is kept here


@pytest.mark.parametrize(
    ("url", "command"),
    [
        ("redis://10.0.0.5", "redis-cli -h 10.0.0.5 -p 6379"),
        ("redis://:secret@10.0.0.5:7000", "redis-cli -h 10.0.0.5 -p 7000 --askpass"),
        (
            "rediss://ann:secret@redis.example",
            "redis-cli -h redis.example -p 6379 --tls --user ann --askpass",
        ),
        ("rediss://redis.example?insecure=yes", "redis-cli -h redis.example -p 6379 --tls --insecure"),
        ("redis+unix:///run/my redis.sock", "redis-cli -s '/run/my redis.sock'"),
    ],
)
def test_commands_reach_the_server_that_they_are_about_and_show_no_password(url: str, command: str) -> None:
    address = parse(url)

    assert command_line(address, address.hosts[0] if address.hosts else None) == command


def test_the_time_that_a_dead_master_costs_is_named_with_the_command_that_shortens_it(
    kind: ServerKind,
) -> None:
    with servers.sentinel(1, *FORCED, program=kind.path) as group:
        first = group.sentinels[0]
        assert verdicts(check_servers(parse(group.url)))["down-after-milliseconds"] == "ok"
        for each in group.sentinels:
            each.ask("SENTINEL", "SET", servers.SERVICE, "down-after-milliseconds", 30_000)
        [finding] = [
            each
            for each in check_servers(parse(group.url)).findings
            if each.setting == "down-after-milliseconds"
        ]

    assert finding.verdict == "warning"
    assert "stand still for about 32 s" in finding.text
    assert finding.command == (
        f"redis-cli -h 127.0.0.1 -p {first.port} sentinel set {servers.SERVICE} down-after-milliseconds 5000"
    )


def test_a_disk_that_was_too_slow_for_everysec_is_reported() -> None:
    settings = {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction"}
    slow = ServerInfo("Valkey", (9, 1), settings, "master", (), False, delayed_syncs=3)

    [finding] = [each for each in evaluate(slow).findings if each.setting == "appendfsync"]
    [power] = [each for each in loss_window(evaluate(slow)) if each.fault == "power_loss"]

    assert "as it was 3 times since its start (aof_delayed_fsync)" in finding.text
    assert "so long and a second more" in power.text


def test_the_lag_of_each_replica_is_a_metric() -> None:
    with servers.replicated(1) as both:
        broker = RedisBroker(both.url, profile="fast")

        def found() -> dict[str, float]:
            text = render(broker.statistics.gauges()).decode()
            lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("openq_redis_")]
            return {name: float(value) for name, _, value in lines}

        until(lambda: found()["openq_redis_replicas"] == 1)
        until(lambda: any(name.startswith("openq_redis_replica_lag_bytes{replica=") for name in found()))
        assert found()["openq_redis_used_memory_bytes"] > 0
        broker.close()
