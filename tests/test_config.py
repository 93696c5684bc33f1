"""The configuration: where values come from, which are refused, and what the refusal says."""

from __future__ import annotations

import tomllib
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openq.broker.schedules import Schedule, check_schedule
from openq.client.settings import LIBRARY_SETTINGS, QueueOptions
from openq.config import (
    KEYS,
    OTHER_VARIABLES,
    Config,
    ConfigError,
    commented_file,
    find_file,
    flag_of,
    is_loopback,
    load,
    secret,
    variable_of,
)
from openq.errors import InvalidSetting
from openq.journal.file_journal import MAX_SEGMENT
from openq.journal.writer import MIN_SEGMENT
from openq.model import ENCODING_JSON, QueueSettings, RetryPolicy
from openq.parsing import read_seconds, read_size, toml_key, toml_text, without_password, without_passwords
from openq.settings import SETTINGS, merge_settings


def write(path: Path, text: str) -> Path:
    file = path / "openq.toml"
    file.write_text(text)
    return file


def refusal(
    flags: dict[str, object] | None = None, environ: dict[str, str] | None = None, file: Any = None
) -> str:
    with pytest.raises(ConfigError) as raised:
        load(flags, environ, file)
    return str(raised.value)


def test_without_anything_every_value_is_its_default() -> None:
    config = load()

    assert config == Config()
    assert (config.data, config.host, config.port) == ("./openq-data", "127.0.0.1", 9324)
    assert config.region == "us-east-1"
    assert {config.origin(key) for key in KEYS} == {"default"}


def test_every_key_is_a_field_and_every_field_a_key() -> None:
    others = {"queues", "schedules", "webhooks", "alerts", "origins", "file"}
    assert set(KEYS) == {each.name for each in fields(Config)} - others


def test_a_flag_goes_before_the_environment_that_before_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, 'port = 1001\nregion = "eu-west-1"\nhost = "127.0.0.2"\n')
    environ = {"OPENQ_PORT": "1002", "OPENQ_REGION": "eu-central-1"}
    config = load({"port": "1003"}, environ, file)

    assert (config.port, config.region, config.host) == (1003, "eu-central-1", "127.0.0.2")
    assert config.origin("port") == "flag --port"
    assert config.origin("region") == "environment variable OPENQ_REGION"
    assert config.origin("host") == f"{file}: host"
    assert config.origin("limits") == "default"
    assert config.file == str(file)


@pytest.mark.parametrize("key", KEYS)
def test_every_key_reads_the_same_from_all_three_sources(key: str, tmp_path: Path) -> None:
    value = getattr(Config(), key)
    named = {"hosts": ("a.example", "b.example"), "amqps_port": 5671, "definitions": "d.json", "archive": "a"}
    named |= {"store": "redis://h:1/2?profile=fast", "profile": "fast"}
    named |= {"otlp_endpoint": "http://h:4318", "otlp_protocol": "grpc", "trace_sample": 0.25}
    named |= {"ui_trace_url": "https://t.example/{trace_id}"}
    value = {**named, "tls_cert": "c.pem", "tls_key": "k.pem", "tls_ca": "ca.pem"}.get(key, value)
    needed = {"tls_cert": ["tls_key"], "tls_key": ["tls_cert"], "amqps_port": ["tls_cert", "tls_key"]}
    beside = needed.get(key, [])
    text = ",".join(value) if isinstance(value, tuple) else str(value)
    file = write(tmp_path, f"{key} = {toml_text(value)}\n" + "".join(f'{name} = "x"\n' for name in beside))
    flags: dict[str, object] = {key: text} | dict.fromkeys(beside, "x")
    environ = {variable_of(key): text} | {variable_of(name): "x" for name in beside}

    read = [load(flags), load({}, environ), load({}, {}, file)]

    assert [getattr(config, key) for config in read] == [value] * 3


@pytest.mark.parametrize("off", ["off", "Off"])
def test_a_protocol_can_be_switched_off(off: str, tmp_path: Path) -> None:
    file = write(tmp_path, f'amqp_port = "{off}"\n')

    assert [load({"amqp_port": off}).amqp_port, load({}, {}, file).amqp_port] == [None, None]
    assert load({}, {}, write(tmp_path, "amqp_port = false\n")).amqp_port is None


def test_who_wants_a_free_port_wants_no_fixed_one_beside_it() -> None:
    assert load({"port": "0"}).amqp_port == 0
    assert load({"port": "0", "amqp_port": "5672"}).amqp_port == 5672


def test_amqp_over_tls_needs_a_certificate() -> None:
    with pytest.raises(ConfigError, match="amqps-port needs tls_cert and tls_key"):
        load({"amqps_port": "5671"})


def test_a_configuration_cannot_be_changed() -> None:
    config = load()

    with pytest.raises(FrozenInstanceError):
        config.port = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.origins["port"] = "me"  # type: ignore[index]


@pytest.mark.parametrize(
    ("flags", "environ", "file", "message"),
    [
        ({"prot": 1}, {}, "", "unknown flag --prot; did you mean 'port'?"),
        (
            {},
            {"OPENQ_PROT": "1"},
            "",
            "environment: unknown variable OPENQ_PROT; did you mean OPENQ_PORT?",
        ),
        ({}, {}, "prot = 1", "FILE: unknown key 'prot'; did you mean 'port'?"),
        ({}, {}, "quues = 1", "FILE: unknown key 'quues'; did you mean 'queues'?"),
        ({"port": "x"}, {}, "", "flag --port must be a whole number, not 'x'"),
        ({}, {"OPENQ_PORT": "99999"}, "", "environment variable OPENQ_PORT must be a port, 0 to 65535"),
        ({}, {}, "port = 1.5", "FILE: port must be a whole number, not 1.5"),
        ({}, {}, "port = true", "FILE: port must be a whole number, not True"),
        ({"limits": "loose"}, {}, "", "flag --limits must be strict, testing or relaxed, not 'loose'"),
        ({"log_level": "loud"}, {}, "", "must be debug, info, warning or error, not 'loud'"),
        ({"region": "a b"}, {}, "", "flag --region must be a region such as us-east-1"),
        ({"memory": "perhaps"}, {}, "", "flag --memory must be true or false"),
        ({"idle_timeout_s": "0"}, {}, "", "must be a time of more than 0 seconds"),
        ({"idle_timeout_s": "soon"}, {}, "", "must be a number of seconds, or a time such as"),
        ({"max_request_bytes": "10"}, {}, "", "must be at least 1024 bytes"),
        ({"max_request_bytes": "1.5"}, {}, "", "must be a number of bytes"),
        ({"segment_bytes": "2GiB"}, {}, "", "flag --segment-bytes must be 65536 to 1073741824 bytes"),
        ({}, {}, "hosts = [1]", "FILE: hosts must be names"),
        ({}, {}, 'data = ""', "FILE: data must be text, not ''"),
        ({}, {}, "port = ", "FILE: Invalid value (at"),
        ({"memory": True, "data": "x"}, {}, "", "flag --memory and flag --data contradict each other"),
        ({"memory": True, "store": "redis://h"}, {}, "", "flag --store and flag --memory contradict each"),
        ({"data": "d", "store": "redis://h"}, {}, "", "flag --store and flag --data contradict each other"),
        ({"store": "http://h"}, {}, "", "flag --store must be an address such as redis://"),
        ({"tls_cert": "c"}, {}, "", "flag --tls-cert needs tls_key too"),
        ({}, {"OPENQ_TLS_KEY": "k"}, "", "environment variable OPENQ_TLS_KEY needs tls_cert too"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_mistake_is_named_with_its_place(
    flags: dict[str, object], environ: dict[str, str], file: str, message: str, tmp_path: Path
) -> None:
    path = write(tmp_path, file)

    assert message.replace("FILE", str(path)) in refusal(flags, environ, path)


def test_a_mistake_is_an_invalid_setting_with_a_code_of_its_own() -> None:
    with pytest.raises(InvalidSetting) as raised:
        load({"port": "x"})

    assert getattr(raised.value, "code", "") == "invalid_config"


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "openq.toml"
    file.write_bytes(b"data = '\xff'")

    assert str(file) in refusal({}, {}, file)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load({}, {}, tmp_path / "none.toml")


def test_an_empty_variable_counts_as_not_set() -> None:
    assert load({}, {"OPENQ_PORT": "", "OPENQ_HOST": ""}) == Config()


def test_variables_of_kubernetes_and_of_the_library_are_left_alone() -> None:
    environ = {
        "OPENQ_PORT": "tcp://10.0.0.7:9324",
        "OPENQ_SERVICE_HOST": "10.0.0.7",
        "OPENQ_SERVICE_PORT_HTTP": "9324",
        "OPENQ_PORT_9324_TCP_ADDR": "10.0.0.7",
        "OPENQ_VISIBILITY_TIMEOUT": "5",
        "OPENQ_IDLE_TIMEOUT": "5",
        "OPENQ_SOMETHING_ELSE_OF_YOURS": "1",
        "openq_port": "7",
    }

    assert load({}, environ).port == 9324


def test_the_settings_are_those_of_the_model_and_of_the_library_s_types() -> None:
    assert {setting.field for setting in SETTINGS} == set(QueueSettings.__slots__) - {"notes"}
    assert set(LIBRARY_SETTINGS) == {*QueueOptions.__annotations__, "visibility_timeout"}


def test_no_setting_of_the_library_is_taken_for_a_misspelt_key() -> None:
    for keyword in LIBRARY_SETTINGS:
        variable = f"OPENQ_{keyword.upper()}"
        assert variable in OTHER_VARIABLES or keyword in KEYS


def test_of_redis_and_a_directory_the_one_that_is_nearer_to_the_user_counts() -> None:
    store = {"OPENQ_STORE": "redis://user:secret@h"}
    near, far = load({"data": "d"}, store), load({}, {**store, "OPENQ_MEMORY": "false"})

    assert (near.store, near.path) == (None, "d")
    assert (far.store, far.path) == (store["OPENQ_STORE"], None)
    assert "secret" not in str(far.describe())


@pytest.mark.parametrize(
    ("flags", "environ", "file", "memory"),
    [
        ({"memory": True}, {"OPENQ_DATA": "d"}, 'data = "f"', True),
        ({"data": "d"}, {"OPENQ_MEMORY": "yes"}, "", False),
        ({"data": "d"}, {}, "memory = true", False),
        ({}, {"OPENQ_MEMORY": "1"}, 'data = "f"', True),
    ],
)
def test_of_memory_and_data_the_one_that_is_nearer_to_the_user_counts(
    flags: dict[str, object], environ: dict[str, str], file: str, memory: bool, tmp_path: Path
) -> None:
    config = load(flags, environ, write(tmp_path, file))

    assert config.memory is memory
    assert (config.path is None) is memory


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(30, 30), ("30", 30), ("500ms", 0.5), ("2m", 120), ("1.5h", 5400), ("4d", 345600), (" 7 s ", 7)],
)
def test_times_have_units(text: object, seconds: float) -> None:
    assert read_seconds(text) == seconds


@pytest.mark.parametrize("text", ["-1", "1y", "", "s", "1e3", True, None, float("nan"), float("inf"), -1])
def test_what_is_no_time_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="seconds"):
        read_seconds(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [(7, 7), ("7", 7), ("64KiB", 65536), ("1.5k", 1536), ("20MiB", 20 << 20), ("1GB", 10**9)],
)
def test_sizes_have_units(text: object, size: int) -> None:
    assert read_size(text) == size


@given(st.text() | st.integers() | st.floats() | st.booleans() | st.none() | st.lists(st.integers()))
def test_whatever_a_value_is_the_answer_is_a_value_or_a_config_error(value: object) -> None:
    for key in KEYS:
        try:
            load({key: value})
        except ConfigError:
            pass


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("localhost", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("::", False),
        ("127.evil.example", False),
        ("10.0.0.1", False),
        ("", False),
    ],
)
def test_what_only_this_machine_can_reach(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


# Queues in the file.


def test_a_declared_queue_is_read_in_seconds_and_in_milliseconds(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        [queues.orders]
        visibility_timeout = 45
        delay_ms = 1500
        retention = "14d"
        dlq = "orders-dead"
        max_bytes = "1MiB"
        retry = { kind = "exponential", base = 2, max = "1h", jitter = 0.5 }
        [queues."orders-dead"]
        """,
    )
    config = load({}, {}, file)

    assert list(config.queues) == ["orders", "orders-dead"]
    assert config.queues["orders"] == {
        "visibility_ms": 45_000,
        "delay_ms": 1500,
        "retention_ms": 14 * 86_400_000,
        "dead_letter": "orders-dead",
        "max_bytes": 1 << 20,
        "retry": RetryPolicy("exponential", 2000, 2.0, 3_600_000, 0.5),
    }
    assert config.queues["orders-dead"] == {}


@pytest.mark.parametrize("field", sorted(set(QueueSettings.__slots__) - {"notes"}))
def test_every_setting_of_a_queue_can_be_declared_by_its_own_name(field: str, tmp_path: Path) -> None:
    default = getattr(QueueSettings(), field)
    value: object = 5 if (default is None and field.startswith("max_")) or field == "ttl_ms" else default
    limits = {"concurrency": 5, "key_concurrency": 5, "rate": "5/s", "key_rate": "5/s"}
    value = limits.get(field, "other") if value is None else value
    beside = '\ndead_letter = "x"' if field == "max_receives" else ""
    config = load({}, {}, write(tmp_path, f"[queues.q]\n{field} = {toml_text(value)}{beside}"))

    assert config.queues["q"][field] == value


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            "[queues.q]\nvisibilty_timeout = 3",
            "queues.q: a queue has no setting 'visibilty_timeout'; did you mean",
        ),
        ("[queues.q]\ndelay = 'soon'", "queues.q: delay must be a number of seconds"),
        ("[queues.q]\ndelay = 1\ndelay_ms = 5", "queues.q: delay_ms and another key set the same value"),
        ("[queues.q]\nmax_receives = 3", "queues.q: max_receives needs a dlq"),
        ("[queues.q]\nmax_receives = 0\ndlq = 'x'", "queues.q: max_receives must be at least 1"),
        ("[queues.q]\noverflow = 'burst'", "queues.q: overflow must be one of drop-head, reject,"),
        ("[queues.q]\nretry = 'often'", "queues.q: retry: retry must be default, none, fixed"),
        ("[queues.q]\nretry = 5", "queues.q: retry must be default, none, fixed, exponential or a table"),
        (
            "[queues.q]\nretry = {bse = 2}",
            "queues.q: retry must be kind, base, max, factor, jitter and on_expiry, not 'bse'",
        ),
        ("[queues.q]\nretry = {factor = 'x'}", "queues.q: retry must be a table in which factor"),
        ("[queues.q]\ndelay_ms = -1", "queues.q: delay_ms must be a whole number of milliseconds"),
        ('[queues."a\\nb"]', "must not contain control characters"),
        ("queues = 5", "queues must be tables"),
        ("[queues]\nq = 5", "queues.q must be a table"),
    ],
    ids=lambda value: value[:40],
)
def test_a_mistake_in_a_declared_queue_is_named(table: str, message: str, tmp_path: Path) -> None:
    assert message in refusal({}, {}, write(tmp_path, table))


def test_a_declared_queue_keeps_what_is_not_named() -> None:
    stored = QueueSettings(visibility_ms=5000, paused=True)

    assert merge_settings(stored, {"delay_ms": 7}) == stored.with_(delay_ms=7)
    assert merge_settings(None, {}) == QueueSettings()


def test_with_a_dead_letter_queue_there_is_a_limit_of_receives() -> None:
    assert merge_settings(None, {"dead_letter": "dead"}).max_receives == 3
    assert merge_settings(None, {"dead_letter": "dead", "max_receives": 7}).max_receives == 7
    assert merge_settings(QueueSettings(max_receives=5, dead_letter="d"), {"delay_ms": 1}).max_receives == 5


def test_the_bounds_of_a_segment_are_those_of_the_storage() -> None:
    for size in (1 << 16, 1 << 30):
        assert MIN_SEGMENT <= load({"segment_bytes": size}).segment_bytes <= MAX_SEGMENT


# Files and secrets.


def test_the_commented_file_changes_nothing_as_it_is(tmp_path: Path) -> None:
    assert load({}, {}, write(tmp_path, commented_file())).origins == {}


def test_the_commented_file_is_right_when_it_is_taken_literally(tmp_path: Path) -> None:
    keys = [line[1:] for line in commented_file().splitlines() if line.startswith("#") and line[1:2] != " "]
    wanted = [line for line in keys if not line.endswith(' = ""') and not line.startswith("memory")]
    config = load({}, {}, write(tmp_path, "\n".join(wanted)))

    assert config.queues.keys() == {"orders", "orders-dead"}
    assert {key: getattr(config, key) for key in KEYS} == {key: getattr(Config(), key) for key in KEYS}
    assert all(any(line.startswith(f"{key} = ") for line in keys) for key in KEYS)


def test_what_is_described_can_be_written_to_a_file_and_read_again(tmp_path: Path) -> None:
    first = write(
        tmp_path, 'hosts = ["a"]\nport = 7\n[queues."a b"]\nretry = {base = 3}\n[queues.c]\ndlq = "é"\n'
    )
    config = load({}, {}, first)
    text = "\n".join(
        f"{key} = {toml_text(value)}" for key, value, _ in config.describe() if value is not None
    )
    again = load({}, {}, write(tmp_path, text))

    assert {key: getattr(again, key) for key in KEYS} == {key: getattr(config, key) for key in KEYS}
    assert again.queues == config.queues


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1))
def test_any_name_is_a_key_of_the_file(name: str) -> None:
    assert tomllib.loads(f"{toml_key(name)} = {toml_text(name)}") == {name: name}


def test_the_file_that_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert find_file({}) is None
    write(tmp_path, "")
    assert find_file({}) == "openq.toml"
    assert find_file({"OPENQ_CONFIG": "/etc/a.toml"}) == "/etc/a.toml"
    assert find_file({"OPENQ_CONFIG": "/etc/a.toml"}, "b.toml") == "b.toml"


def test_a_secret_comes_from_its_variable_or_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("oq_abc\n")

    assert secret("OPENQ_TOKEN", {}) is None
    assert secret("OPENQ_TOKEN", {"OPENQ_TOKEN": "oq_x"}) == "oq_x"
    assert secret("OPENQ_TOKEN", {"OPENQ_TOKEN_FILE": str(file)}) == "oq_abc"
    with pytest.raises(ConfigError, match="contradict"):
        secret("OPENQ_TOKEN", {"OPENQ_TOKEN": "x", "OPENQ_TOKEN_FILE": str(file)})
    file.write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        secret("OPENQ_TOKEN", {"OPENQ_TOKEN_FILE": str(file)})


def test_flags_and_variables_are_made_from_the_key() -> None:
    assert (flag_of("idle_timeout_s"), variable_of("idle_timeout_s")) == (
        "--idle-timeout-s",
        "OPENQ_IDLE_TIMEOUT_S",
    )


SCHEDULES = """
[schedules.report]
queue = "jobs"
cron = "0 7 * * mon-fri"
timezone = "Europe/Berlin"
body = { kind = "daily" }
misfire = "skip"
jitter = "10s"
start = 2026-01-01T00:00:00Z
end = "2026-12-31"
priority = 3
group = "g"
message_type = "report"
attributes = { tenant = "a" }
delay = 1
ttl = "5m"
unique_key = "report"

[schedules.tidy]
queue = "jobs"
every = "5m"
"""


def test_schedules_are_read_from_their_tables(tmp_path: Path) -> None:
    config = load({}, {}, write(tmp_path, SCHEDULES))

    assert config.schedules["tidy"] == {"queue": "jobs", "every_ms": 300_000}
    report = Schedule("report", **config.schedules["report"])
    check_schedule(report)
    assert report == Schedule(
        "report",
        "jobs",
        b'{"kind": "daily"}',
        ENCODING_JSON,
        cron="0 7 * * mon-fri",
        timezone="Europe/Berlin",
        misfire="skip",
        jitter_ms=10_000,
        start_ms=1_767_225_600_000,
        end_ms=1_798_675_200_000,
        priority=3,
        group="g",
        type="report",
        attributes={"tenant": "a"},
        delay_ms=1_000,
        ttl_ms=300_000,
        unique="report",
    )
    assert "schedules.tidy" in [row[0] for row in config.describe()]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schedules = 1", "schedules must be tables, such as [schedules.tidy]"),
        ("[schedules]\nx = 1", "schedules.x must be a table, such as [schedules.tidy]"),
        ("[schedules.x]\nevery = 1", 'schedules.x: the queue is missing, such as queue = "orders"'),
        ("[schedules.x]\nqueue = 'q'", "schedules.x: give either cron or every"),
        ("[schedules.x]\nqueue = 'q'\nevery = 1\ncron = '@daily'", "schedules.x: give either cron or every"),
        ("[schedules.x]\nqueu = 'q'", "schedules.x: a schedule has no key 'queu'; did you mean 'queue'?"),
        (
            "[schedules.x]\ncron = '61 * * * *'",
            "schedules.x: cron: cron '61 * * * *': minute",
        ),
        ("[schedules.x]\ntimezone = 'Mars'", "schedules.x: timezone: unknown time zone 'Mars'"),
        ("[schedules.x]\nevery = 'often'", "schedules.x: every must be a number of seconds"),
        ("[schedules.x]\nstart = 'soon'", "schedules.x: start must be a time such as 2026-01-31T12:00:00Z"),
        ("[schedules.x]\nmisfire = 'no'", "schedules.x: misfire must be skip, once or all, not 'no'"),
        ("[schedules.x]\nattributes = 1", "schedules.x: attributes must be a table"),
    ],
)
def test_a_mistake_in_a_schedule_is_named_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    assert f"{path}: {message}" in refusal({}, {}, path)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://ann:secret@host:6379/0", "redis://ann:...@host:6379/0"),
        ("redis://:secret@host", "redis://:...@host"),
        ("redis://ann:se/c@r/et@host", "redis://ann:...@host"),
        ("http://ann:se://cret@host", "http://ann:...@host"),
        ("ann:secret@host", "ann:...@host"),  # as in an error about a missing scheme
        ("redis://ann@host", "redis://ann@host"),
        ("redis://host:6379", "redis://host:6379"),
        ("host", "host"),
    ],
)
def test_an_address_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_a_text_is_shown_without_the_passwords_of_its_addresses() -> None:
    text = "unreachable: redis://:p@ss@one:6379, redis://ann:a/b@two (ask me@example.org), then http://three"
    shown = "unreachable: redis://:...@one:6379, redis://ann:...@two (ask me@example.org), then http://three"
    assert without_passwords(text) == shown


def test_several_processes_need_a_store_that_they_share(tmp_path: Path) -> None:
    assert load({"processes": "4", "store": "redis://localhost"}).processes == 4
    assert load({"processes": "1"}).processes == 1
    for flags in ({"processes": "2"}, {"processes": "2", "memory": True}):
        text = refusal(flags)
        assert "flag --processes needs a store that processes can share (--store redis://" in text
    assert "environment variable OPENQ_PROCESSES" in refusal(environ={"OPENQ_PROCESSES": "3"})
    assert "processes must be 1 to 256" in refusal(file=write(tmp_path, "processes = 0"))
