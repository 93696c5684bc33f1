"""What Redis may lose, reported before it is relied on: settings, profiles, and the loss window.

By default Redis confirms a write before it is on a disk or on another machine. So the settings of the servers
are read at start: `safe` refuses to start on settings that would lose acknowledged messages, `fast` starts
and reports how much may be lost. Only `read_server_info` (server_info.py) talks to a server; this module is
pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import InvalidSetting
from ..metrics import Family
from .server_info import ServerInfo as ServerInfo
from .server_info import read_server_info as read_server_info

PROFILES = ("safe", "fast")
MIN_VERSION = (7, 0)  # the first version with Functions

EVERYSEC_S = 2.0  # one sync per second; writes are held back for up to two seconds while a sync is slow
FAILOVER_S = 2.0  # for an election, and for clients to find the new master
LONG_TIMEOUT_S = 5.0
KERNEL_S = 30.0  # how long Linux keeps a written page before it flushes it to disk
FAULTS = {
    "process_killed": "the Redis process is killed",
    "power_loss": "its machine loses power",
    "failover": "the master dies and a replica takes over",
    "network_split": "the master is cut off from its replicas",
    "disk_lost": "its machine is lost for good",
}


@dataclass(frozen=True, slots=True)
class SafetyFinding:
    """One setting, whether it is sufficient, and the fix if not."""

    setting: str
    value: str
    verdict: str  # ok | warning | failed | unknown
    text: str
    command: str = ""
    node: str = ""

    def __str__(self) -> str:
        where = f"{self.node}: " if self.node else ""
        command = f": `{self.command}`" if self.command else ""
        return f"{where}{self.setting} {self.value or 'unknown'}: {self.text}{command}"


@dataclass(frozen=True, slots=True)
class LossEstimate:
    """How much acknowledged data one kind of fault may lose."""

    fault: str
    seconds: float  # inf: without bound; NaN: unknown
    text: str

    def __str__(self) -> str:
        return f"{FAULTS[self.fault]}: {format_window(self.seconds)}; {self.text}"


@dataclass(frozen=True, slots=True)
class SafetyReport:
    profile: str
    nodes: tuple[ServerInfo, ...]
    findings: tuple[SafetyFinding, ...]
    copies: int | None = None  # number of replicas that answers wait for; None: all connected ones

    def required_replicas(self, info: ServerInfo) -> int:
        if self.profile == "fast":
            return 0
        return len(info.lags_s) if self.copies is None else self.copies

    @property
    def failures(self) -> list[SafetyFinding]:
        return [finding for finding in self.findings if finding.verdict == "failed"]

    @property
    def warnings(self) -> list[SafetyFinding]:
        return [finding for finding in self.findings if finding.verdict in ("warning", "unknown")]


def format_window(seconds: float) -> str:
    if math.isnan(seconds):
        return "unknown"
    if math.isinf(seconds):
        return "without bound"
    return "nothing" if not seconds else f"up to {seconds:g} s"


# -- evaluating ---------------------------------------------------------------------------------


def evaluate(
    info: ServerInfo | Sequence[ServerInfo], profile: str = "safe", copies: int | None = None
) -> SafetyReport:
    """The findings on one server, or on all masters of a cluster.

    `copies` is the number of replicas that answers wait for, if not all that are connected.
    """
    if profile not in PROFILES:
        raise InvalidSetting(f"profile must be safe or fast, not {profile!r}")
    nodes = (info,) if isinstance(info, ServerInfo) else tuple(info)
    report = SafetyReport(profile, nodes, (), copies)
    return replace(report, findings=tuple(each for node in nodes for each in _findings(node, report)))


def refuse_unsafe(report: SafetyReport) -> list[str]:
    """Raise for findings that the profile does not allow; otherwise return the warnings to be logged."""
    for node in report.nodes:
        refuse_old_version(node)
    if report.failures:
        wrong = "\n".join(f"  {finding}" for finding in report.failures)
        raise InvalidSetting(
            f"this Redis may lose acknowledged messages, which the profile safe does not allow:\n{wrong}\n"
            f"(`{_rewrite(report)}` makes changes stay.) The profile fast starts anyway, with that risk"
        )
    warnings = [str(finding) for finding in report.warnings]
    if report.profile == "fast":
        risks = [str(line) for line in loss_window(report) if line.seconds]
        if risks:
            warnings.append("profile fast; acknowledged messages may be lost when " + "; when ".join(risks))
    return warnings


def _rewrite(report: SafetyReport) -> str:
    """The CONFIG REWRITE command: complete for one server, a template for several."""
    return f"{report.nodes[0].cli if len(report.nodes) == 1 else 'redis-cli -h ... -p ...'} config rewrite"


def refuse_old_version(info: ServerInfo) -> None:
    if info.version < MIN_VERSION:
        version = ".".join(map(str, info.version))
        where = f" at {info.node}" if info.node else ""
        raise InvalidSetting(
            f"{info.product} {version}{where} is too old: OpenQ needs Redis 7.0 or newer, or Valkey, "
            "because its verbs are Redis Functions"
        )


class _Findings:
    """The findings on one server, in order."""

    def __init__(self, info: ServerInfo, report: SafetyReport) -> None:
        self.info = info
        self.report = report
        # Verdict for settings that `safe` refuses
        self.strict = "failed" if report.profile == "safe" else "warning"
        self.found: list[SafetyFinding] = []

    def add(self, setting: str, verdict: str, text: str, command: str = "", value: str | None = None) -> None:
        shown = self.info.settings.get(setting, "") if value is None else value
        self.found.append(SafetyFinding(setting, shown, verdict, text, command, self.info.node))


def _findings(info: ServerInfo, report: SafetyReport) -> list[SafetyFinding]:
    findings = _Findings(info, report)
    version = f"{info.product} {'.'.join(map(str, info.version))}"
    if info.version >= MIN_VERSION:
        findings.add("version", "ok", "has the functions that OpenQ needs", value=version)
    else:
        findings.add("version", "failed", "Redis 7.0 or newer, or Valkey, is needed", value=version)
    if info.role != "master":
        findings.add("role", "failed", "a replica takes no writes: name its master", value=info.role)
    if info.config_error:
        findings.add(
            "config",
            "warning",
            f"CONFIG GET is refused ({info.config_error}): look up what is unknown below where this Redis is "
            "managed, or allow it by `acl setuser NAME +config|get`",
            value="hidden",
        )
    _judge_disk(findings)
    _judge_memory(findings)
    _judge_replicas(findings)
    _judge_failover(findings)
    return findings.found


def _judge_disk(findings: _Findings) -> None:
    info, add, strict = findings.info, findings.add, findings.strict
    command = f"{info.cli} config set appendonly yes"
    appendonly = info.settings.get("appendonly")
    if appendonly is None:
        add("appendonly", "unknown", "it must be yes", command)
    elif appendonly != "yes":
        add("appendonly", strict, "what came after the last snapshot is lost in every restart", command)
    elif info.aof_error:
        add("appendonly", strict, "but the last write to that file failed: look at its disk and its log")
    else:
        add("appendonly", "ok", "every change is written to a file")
    if appendonly == "no":
        return  # appendfsync has no effect then
    always = f"{info.cli} config set appendfsync always"
    match info.settings.get("appendfsync"):
        case None:
            add("appendfsync", "unknown", "it must be always or everysec", always)
        case "always":
            add("appendfsync", "ok", "every change is on disk before it is answered")
        case "everysec":
            add("appendfsync", "warning", f"a power cut may take up to {EVERYSEC_S:g} s{_slow(info)}", always)
        case _:
            add("appendfsync", strict, "the system alone decides when it goes to disk", always)


def _slow(info: ServerInfo) -> str:
    if not info.delayed_syncs:
        return ""
    times = "once" if info.delayed_syncs == 1 else f"{info.delayed_syncs} times"
    return f", and more while its disk is slow, as it was {times} since its start (aof_delayed_fsync)"


def _judge_memory(findings: _Findings) -> None:
    info, add, strict = findings.info, findings.add, findings.strict
    command = f"{info.cli} config set maxmemory-policy noeviction"
    policy, most = info.settings.get("maxmemory-policy"), info.settings.get("maxmemory")
    if policy is None:
        add("maxmemory-policy", "unknown", "it must be noeviction", command)
    elif policy == "noeviction":
        add("maxmemory-policy", "ok", "a full Redis refuses publishes and forgets nothing")
    elif most == "0":
        add("maxmemory-policy", "warning", "messages would be evicted once maxmemory is set", command)
    else:
        add("maxmemory-policy", strict, "a full Redis would evict messages", command)


def _judge_replicas(findings: _Findings) -> None:
    info, add = findings.info, findings.add
    count = len(info.lags_s)
    wanted = findings.report.required_replicas(info)
    if wanted > count:
        text = f"answers are to wait for {wanted} (replicas=): every publish would fail"
        add("replicas", "failed", text, value=f"{count or 'none'} connected")
        return
    if not count:
        add("replicas", "ok", "what is lost with the disk of this machine is lost", value="none")
        return
    if wanted == count:
        verdict, text = "ok", "every answer waits for all of them"
    elif wanted:
        verdict, text = "warning", f"answers wait for {wanted}, and another one may take over"
    else:
        verdict, text = "warning", "answers do not wait for them"
    add("replicas", verdict, text, value=f"{count} connected")
    least = info.settings.get("min-replicas-to-write")
    if info.in_cluster:
        return  # there an isolated master stops by itself
    command = f"{info.cli} config set min-replicas-to-write 1"
    if least is None:
        add(
            "min-replicas-to-write",
            "unknown",
            "at least 1 keeps a master that is cut off from taking writes",
            command,
        )
    elif least == "0":
        add("min-replicas-to-write", "warning", "a master that is cut off goes on taking writes", command)
    else:
        add("min-replicas-to-write", "ok", "a master that is cut off stops taking writes")


def _judge_failover(findings: _Findings) -> None:
    """How long queues are unavailable when a master dies: nearly all of it is the timeout set on the
    servers."""
    info = findings.info
    if info.in_cluster and info.lags_s:
        setting, command = "cluster-node-timeout", f"{info.cli} config set cluster-node-timeout"
    elif info.sentinel_cli:
        setting, command = (
            "down-after-milliseconds",
            f"{info.sentinel_cli} down-after-milliseconds",
        )
    else:
        return
    if setting not in info.settings:
        return
    timeout_s = info.number(setting, 15_000.0) / 1000
    text = f"queues of a master that dies stand still for about {timeout_s + FAILOVER_S:g} s"
    if timeout_s > LONG_TIMEOUT_S:
        findings.add(setting, "warning", text, f"{command} {LONG_TIMEOUT_S * 1000:.0f}")
    else:
        findings.add(setting, "ok", text)


# -- the loss window ----------------------------------------------------------------------------


def loss_window(report: SafetyReport) -> list[LossEstimate]:
    """How much acknowledged data each fault may lose. Of several servers, the worst."""
    worst: dict[str, LossEstimate] = {}
    for node in report.nodes:
        for line in _estimates(node, report):
            known = worst.get(line.fault)
            if known is None or _severity(line.seconds) > _severity(known.seconds):
                worst[line.fault] = line
    return list(worst.values())


def _severity(seconds: float) -> float:
    return 1e18 if math.isnan(seconds) else min(seconds, 2e18)


def _estimates(info: ServerInfo, report: SafetyReport) -> list[LossEstimate]:
    killed, power = _killed(info, report), _power(info, report)
    if not info.lags_s:
        return [
            killed,
            power,
            LossEstimate("failover", 0.0, "there is no replica: queues stand still until Redis is back"),
            LossEstimate("network_split", 0.0, "there is no replica that could take over meanwhile"),
            LossEstimate("disk_lost", math.inf, "there is no replica, all messages were only there"),
        ]
    if report.required_replicas(info) >= len(info.lags_s):
        one = "while only one machine fails: every answer waited for all connected replicas (WAIT)"
        return [
            killed,
            power,
            LossEstimate("failover", 0.0, one),
            _split_safe(info),
            LossEstimate("disk_lost", 0.0, one),
        ]
    lag_s = float(max(1, *info.lags_s))
    text = "what the replica had not got yet: commonly milliseconds, and nothing bounds it"
    if _stops_alone(info):
        lag_s = info.number("min-replicas-max-lag", 10.0)
        text = "what the replica had not got yet: commonly milliseconds, at most min-replicas-max-lag"
    return [
        killed,
        power,
        LossEstimate("failover", lag_s, text),
        _split_fast(info, lag_s),
        LossEstimate("disk_lost", lag_s, text),
    ]


def _unless_appended(fault: str, info: ServerInfo) -> LossEstimate | None:
    """The loss of a server that does not append each change to a file. None: it does."""
    match info.settings.get("appendonly"):
        case "no":
            return _snapshots(fault, info)
        case None:
            return LossEstimate(fault, math.nan, "whether appendonly is on is not known")
        case _:
            return None


def _killed(info: ServerInfo, report: SafetyReport) -> LossEstimate:
    fault = "process_killed"
    if (without := _unless_appended(fault, info)) is not None:
        return without
    match info.settings.get("appendfsync"):
        case "everysec" | None:
            return LossEstimate(
                fault,
                EVERYSEC_S,
                "nothing while the disk keeps up; Redis holds writes back while a sync is slow",
            )
        case _:
            return LossEstimate(fault, 0.0, "every change was handed to the system before its answer")


def _power(info: ServerInfo, report: SafetyReport) -> LossEstimate:
    fault = "power_loss"
    if (without := _unless_appended(fault, info)) is not None:
        return without
    match info.settings.get("appendfsync"):
        case "always":
            return LossEstimate(fault, 0.0, "every change was on disk before its answer (appendfsync always)")
        case "everysec":
            # WAITAOF does not change that: with everysec it was observed to answer before the sync.
            return LossEstimate(
                fault,
                EVERYSEC_S,
                "the file is synced each second (appendfsync everysec); while a sync takes longer than that, "
                "so long and a second more",
            )
        case None:
            return LossEstimate(
                fault, math.nan, f"appendfsync is not known: {EVERYSEC_S:g} s if it is everysec"
            )
        case _:
            return LossEstimate(
                fault, KERNEL_S, "the system alone decides when it goes to disk (appendfsync no)"
            )


def _snapshots(fault: str, info: ServerInfo) -> LossEstimate:
    words = info.settings.get("save")
    if words is None:
        return LossEstimate(fault, math.nan, "what came after the last snapshot (appendonly no)")
    points = words.split()
    # A save point that requires more than one change may never be reached, so it is not a bound.
    bounds = [
        float(after_s) for after_s, changes in zip(points[::2], points[1::2], strict=True) if changes == "1"
    ]
    if not bounds:
        return LossEstimate(fault, math.inf, "everything that no snapshot holds yet (appendonly no)")
    return LossEstimate(
        fault, min(bounds), f"what came after the last snapshot (save {words}; appendonly no)"
    )


def _split_safe(info: ServerInfo) -> LossEstimate:
    fault = "network_split"
    refused = "answers fail while the replicas do not confirm them (WAIT)"
    if info.in_cluster:
        node_s, repl_s = (
            info.number("cluster-node-timeout", 15_000.0) / 1000,
            info.number("repl-timeout", 60.0),
        )
        if node_s < repl_s:
            return LossEstimate(
                fault, 0.0, f"{refused}, and a master that is cut off stops after {node_s:g} s"
            )
        return LossEstimate(fault, node_s - repl_s, "repl-timeout should be longer than cluster-node-timeout")
    if _stops_alone(info):
        return LossEstimate(fault, 0.0, f"{refused}, and a master without replicas takes no writes")
    repl_s = info.number("repl-timeout", 60.0)
    return LossEstimate(
        fault,
        math.inf,
        f"nothing for the first {repl_s:g} s: {refused}; then the master drops its replicas and goes on "
        f"alone: `{info.cli} config set min-replicas-to-write 1`",
    )


def _split_fast(info: ServerInfo, lag_s: float) -> LossEstimate:
    fault = "network_split"
    if info.in_cluster:
        node_s = info.number("cluster-node-timeout", 15_000.0) / 1000
        # Measured with 15 s: the last answer came 18.3 s after the cut.
        return LossEstimate(
            fault, node_s * 1.25, f"a master that is cut off takes writes for {node_s:g} s and a little more"
        )
    if _stops_alone(info):
        return LossEstimate(fault, lag_s, "then the master stops (min-replicas-to-write)")
    return LossEstimate(
        fault, math.inf, "a master that is cut off goes on taking writes, and loses them when it is back"
    )


def _stops_alone(info: ServerInfo) -> bool:
    return info.number("min-replicas-to-write", 0.0) > 0


def loss_window_gauges(report: SafetyReport) -> list[Family]:
    """For monitoring: alert on more loss than is acceptable. +Inf means without bound, NaN unknown."""
    samples = [({"fault": line.fault}, line.seconds) for line in loss_window(report)]
    return [
        Family(
            "openq_store_loss_window_seconds",
            "gauge",
            "What was acknowledged in so many seconds may be lost by this kind of fault.",
            samples,
        )
    ]
