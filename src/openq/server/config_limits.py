"""The limits of a server, from its configuration."""

from __future__ import annotations

import resource
from contextlib import suppress

from ..broker.audit import AuditLimits
from ..config import Config
from .listener import HttpLimits


def http_limits(config: Config) -> HttpLimits:
    return HttpLimits(
        request_bytes=config.max_request_bytes,
        connections=config.max_connections,
        head_s=config.header_timeout_s,
        body_s=config.body_timeout_s,
        idle_s=config.idle_timeout_s,
    )


def audit_limits(config: Config) -> AuditLimits:
    return AuditLimits(config.audit_bytes, int(config.audit_age_s * 1000))


def raise_file_limit() -> None:
    """Raise the limit of open files: each connection is a file, and the soft limit is often 1,024 where the
    hard limit is much higher."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or soft < hard:
        wanted = 1 << 20 if hard == resource.RLIM_INFINITY else hard
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
