"""Metrics of logins and of the logs themselves."""

from __future__ import annotations

from ..metrics import Family
from .context import ServerContext
from .logs import log_writer


def log_metrics(context: ServerContext) -> list[Family]:
    guard, writer = context.guard, log_writer()
    counts = sorted(guard.refused.counts.items())
    audit = context.audit
    return [
        Family(
            "openq_audit_records_total",
            "counter",
            "Records that this server added to the audit log.",
            [({}, audit.written)],
        ),
        Family(
            "openq_audit_records_waiting",
            "gauge",
            "Records that wait because the audit log cannot be written now.",
            [({}, audit.waiting)],
        ),
        Family(
            "openq_audit_records_lost_total",
            "counter",
            "Records of the audit log that could not be written.",
            [({}, audit.lost)],
        ),
        Family(
            "openq_logins_refused_total",
            "counter",
            "Refused logins, by protocol and reason.",
            [({"protocol": protocol, "reason": reason}, count) for (protocol, reason), count in counts],
        ),
        Family(
            "openq_login_lockouts_total",
            "counter",
            "Times that an address was locked out after too many failed logins.",
            [({}, guard.refused.lockouts)],
        ),
        Family(
            "openq_login_locked_addresses",
            "gauge",
            "Addresses that are locked out now.",
            [({}, guard.locked_addresses)],
        ),
        Family(
            "openq_log_lines_dropped_total",
            "counter",
            "Log lines that were dropped because the log was not read fast enough.",
            [({}, 0 if writer is None else writer.dropped)],
        ),
        Family(
            "openq_log_events_total",
            "counter",
            "State changes that were logged (log_events).",
            [({}, context.event_log.logged)],
        ),
        Family(
            "openq_log_event_gaps_total",
            "counter",
            "Times that state changes are missing in the log, because the store no longer kept them.",
            [({}, context.event_log.gaps)],
        ),
    ]
