"""The rules that every server has. Limits are chosen so that an idle or new server is silent.

A rule that is about a trend or a rate also wants a minimum of traffic: three failures of four messages are no
storm. `for` is short where waiting helps nobody, and long where consumers may just be restarting.
"""

from __future__ import annotations

from .rule import CRITICAL, WARNING, AlertRule


def _rule(name: str, expression: str, **fields: object) -> AlertRule:
    return AlertRule(name=name, expression=expression, is_builtin=True, **fields)  # type: ignore[arg-type]


_MINUTE, _HOUR = 60.0, 3600.0
_WORK_QUEUE = "not queue.is_dead_letter and not queue.is_paused"

BUILTIN: tuple[AlertRule, ...] = (
    # -- queues ---------------------------------------------------------------------------------
    _rule(
        "dead-letters",
        "increase(queue.dead_lettered[window]) >= count",
        help="messages were dead-lettered",
        limits={"count": 1, "window": 5 * _MINUTE},
        figures={"letters": "increase(queue.dead_lettered[window])"},
        summary="{letters:count message} of {queue} dead-lettered to {dead_letter} in the last "
        "{window:duration}",
        action="Look at the reasons with `openq dlq groups {dead_letter}`, correct the consumer or the "
        "messages, then send them back.",
        command="openq dlq redrive {dead_letter} --rate 50",
    ),
    _rule(
        "oldest-message",
        f"queue.oldest_age > age and {_WORK_QUEUE}",
        help="the oldest waiting message is too old",
        limits={"age": 15 * _MINUTE},
        figures={"age": "queue.oldest_age", "ready": "queue.ready", "rate": "rate(queue.acked[5m])"},
        for_s=5 * _MINUTE,
        summary="the oldest message of {queue} has waited {age:duration}; {ready:count} ready, "
        "{rate:rate} completed",
        action="Start more consumers, or find out why they are slow: `openq top --once` shows the workers, "
        "`openq dlq ls` what failed.",
        command="openq queue show {queue}",
    ),
    _rule(
        "backlog-grows",
        "queue.ready > backlog and slope(queue.ready[window]) > growth "
        f"and rate(queue.published[window]) > 1.1 * rate(queue.acked[window]) and {_WORK_QUEUE}",
        help="a backlog grows faster than it drains",
        limits={"backlog": 1000, "growth": 1, "window": 10 * _MINUTE},
        figures={
            "ready": "queue.ready",
            "growth": "slope(queue.ready[window])",
            "forecast": "forecast(queue.ready[window], 1h)",
            "published": "rate(queue.published[window])",
            "acked": "rate(queue.acked[window])",
        },
        for_s=5 * _MINUTE,
        summary="the backlog of {queue} grows by {growth:rate}: {ready:count message} ready now, "
        "{forecast:count} in an hour; {published:rate} published, {acked:rate} completed",
        action="Start more consumers, or slow the publishers: `openq queue edit {queue} --max-length N` "
        "limits the backlog.",
        command="openq series {queue} published acked ready --since 1h",
    ),
    _rule(
        "nobody-consumes",
        f"queue.ready >= ready and queue.in_flight == 0 and queue.consumers == 0 "
        f"and queue.limited < queue.ready and {_WORK_QUEUE} and increase(queue.delivered[window]) == 0",
        help="messages wait and no consumer is there",
        limits={"ready": 1, "window": 10 * _MINUTE},
        figures={"ready": "queue.ready", "age": "queue.oldest_age"},
        for_s=10 * _MINUTE,
        summary="nobody consumes {queue}: {ready:count message} ready, the oldest for {age:duration}",
        action="Start the consumers of this queue. If it is not consumed on purpose, pause it: "
        "`openq queue pause {queue}`.",
        command="openq worker run MODULE:APP --queue {queue}",
    ),
    _rule(
        "error-rate",
        "increase(queue.delivered[window]) >= deliveries and increase(queue.nacked[window]) "
        "+ increase(queue.lease_expired[window]) > share * increase(queue.delivered[window])",
        help="too many deliveries fail",
        limits={"share": 0.25, "deliveries": 20, "window": 5 * _MINUTE},
        figures={
            "failed": "increase(queue.nacked[window]) + increase(queue.lease_expired[window])",
            "delivered": "increase(queue.delivered[window])",
            "share": "(increase(queue.nacked[window]) + increase(queue.lease_expired[window])) "
            "/ increase(queue.delivered[window])",
        },
        for_s=1 * _MINUTE,
        summary="{share:percent} of the deliveries of {queue} fail: {failed:count} of {delivered:count}",
        action="See which deliveries fail, and look into the log of their consumer. `openq dlq ls` lists the "
        "queues that take dead letters, `openq dlq groups` their reasons.",
        command="openq events {queue} --event nacked --event lease_expired",
    ),
    _rule(
        "redelivery-storm",
        "increase(queue.redelivered[window]) > count "
        "and increase(queue.redelivered[window]) > share * increase(queue.delivered[window])",
        help="most deliveries are retries",
        limits={"count": 100, "share": 0.5, "window": 5 * _MINUTE},
        figures={
            "redelivered": "increase(queue.redelivered[window])",
            "delivered": "increase(queue.delivered[window])",
        },
        for_s=1 * _MINUTE,
        summary="{redelivered:count} of {delivered:count} deliveries of {queue} are retries",
        action="Consumers return messages again and again. Give retries a delay and a limit.",
        command="openq queue edit {queue} --retry exponential --max-receives 5",
    ),
    _rule(
        "lease-losses",
        "increase(queue.lease_expired[window]) >= count",
        help="leases end before consumers settle their messages",
        limits={"count": 3, "window": 5 * _MINUTE},
        figures={"leases": "increase(queue.lease_expired[window])"},
        summary="{leases:count lease} of {queue} ended before the message was settled",
        action="Consumers died, or need longer than the visibility timeout of {visibility} s: lengthen it, "
        "or let them extend their leases.",
        command="openq queue edit {queue} --visibility-timeout 120",
    ),
    # -- workers, cursors, schedules, webhooks ----------------------------------------------------
    _rule(
        "worker-lost",
        "worker.silent_seconds > 0 and worker.silent_seconds < forget",
        help="a worker process ended without saying so",
        limits={"forget": 15 * _MINUTE},
        figures={"busy": "worker.busy", "silent": "worker.silent_seconds"},
        severity=WARNING,
        summary="the worker {worker} (process {pid} on {host}) is gone since {silent:duration}; it ran "
        "{busy:count job}",
        action="Its messages return when their leases end. Look at its log, and start it again.",
        command="openq worker run {runs}",
    ),
    _rule(
        "cursor-lag",
        "cursor.lag_seconds > age or cursor.lost == 1",
        help="a reader of the history is far behind, or lost its place",
        limits={"age": _HOUR},
        figures={"age": "cursor.lag_seconds", "bytes": "cursor.lag_bytes"},
        for_s=5 * _MINUTE,
        summary="the cursor {cursor} is {age:duration} and {bytes:bytes} behind{reason}",
        action="Start its reader again. If it is not needed any more, remove it: the journal is kept for it.",
        command="openq pipeline cursors rm {cursor}",
    ),
    _rule(
        "schedule-missed",
        "increase(schedule.missed[window]) >= count",
        help="runs of a schedule were dropped",
        limits={"count": 1, "window": 15 * _MINUTE},
        figures={"missed": "increase(schedule.missed[window])"},
        summary="{missed:count run} of the schedule {schedule} dropped{reason}",
        action="No server ran when they were due, or its queue took no messages. Publish one now if it is "
        "needed.",
        command="openq schedule run {schedule}",
    ),
    _rule(
        "webhook-disabled",
        "webhook.enabled == 0 and webhook.by_server == 1",
        help="an endpoint answered 410, so its webhook was disabled",
        summary="the webhook {webhook} is disabled{reason}",
        action="Messages wait in the queue. Repair the endpoint, try it with `openq webhook test {webhook}`, "
        "then enable it.",
        command="openq webhook enable {webhook}",
    ),
    # -- the server ---------------------------------------------------------------------------------
    _rule(
        "store-failed",
        "server.healthy == 0 and server.disk_full == 0",
        help="the journal failed, or Redis is unreachable",
        severity=CRITICAL,
        for_s=4.0,
        summary="{server} cannot use its store{detail}",
        action="Redis: see that it runs, and which master is in charge. Journal: the disk failed; the server "
        "answers nothing that it cannot keep. Restart it when the disk is well.",
        command="openq doctor {store_flag}",
    ),
    _rule(
        "disk-full",
        "server.disk_full == 1",
        help="publishing is refused because there is no space",
        severity=CRITICAL,
        figures={"free": "server.disk_free"},
        summary="{server} refuses to publish: {full_place} is full{detail}",
        action="Delete other files or enlarge the file system; publishing resumes by itself. The largest "
        "queue is {largest_queue} with {largest_size}: consume it, or purge it if its messages are not "
        "needed (it asks first).",
        command="openq queue purge {largest_queue}",
    ),
    _rule(
        "disk-filling",
        "(server.disk_free < free and server.disk_free_share < share) or "
        "(time_until(server.disk_free[window], 0) < ahead and server.disk_free_share < 50%)",
        help="the disk is nearly full, or will be soon",
        limits={"free": 2.0 * 2**30, "share": 0.1, "window": _HOUR / 2, "ahead": 4 * _HOUR},
        figures={
            "free": "server.disk_free",
            "share": "server.disk_free_share",
            "left": "time_until(server.disk_free[window], 0)",
        },
        for_s=10.0,
        summary="the disk of {server} has {free:bytes} left ({share:percent}); at this rate it is full in "
        "{left:duration}",
        action="Delete other files of {data} or enlarge the file system. The largest queue is "
        "{largest_queue} with {largest_size}: start more consumers for it.",
        command="openq queue purge {largest_queue} --dry-run",
    ),
    _rule(
        "sync-slow",
        "server.sync_p99 > seconds and increase(server.syncs[5m]) >= syncs",
        help="the disk is slow",
        limits={"seconds": 0.25, "syncs": 50},
        figures={"p99": "server.sync_p99"},
        for_s=3 * _MINUTE,
        summary="one of a hundred syncs of {server} takes more than {p99:duration}",
        action="Every answer waits for a sync. Move the data directory to a faster disk, or find what else "
        "writes there.",
        command="openq doctor --data {data}",
    ),
    _rule(
        "damaged-records",
        "server.degraded == 1",
        help="damaged records were found",
        summary="{server} found damaged records{detail}",
        action="Intact messages are served. See what is lost with `openq damage ls`, check the disk, then "
        "clear the list.",
        command="openq damage clear",
    ),
    _rule(
        "loss-window",
        "store.is_safe == 1 and store.loss_window > seconds",
        help="Redis may lose acknowledged messages",
        severity=CRITICAL,
        limits={"seconds": 1},
        figures={"window": "store.loss_window"},
        for_s=10.0,
        summary="Redis may lose {window:duration} of acknowledged messages: its settings changed",
        action="Set appendonly yes, appendfsync always and enough replicas again: the report names the "
        "commands.",
        command="openq doctor {store_flag}",
    ),
    _rule(
        "replica-missing",
        "store.replicas < store.replicas_seen and store.replicas < replicas or store.replicas < wanted",
        help="a replica of Redis is gone",
        limits={"replicas": 1000, "wanted": 0},
        figures={"replicas": "store.replicas", "seen": "store.replicas_seen"},
        for_s=4.0,
        summary="Redis has {replicas:count replica}, there were {seen:count}",
        action="Start the missing server, or attach a new replica to the master. If fewer are meant: "
        "`openq alert set replica-missing replicas=N`.",
        command="openq doctor {store_flag}",
    ),
    _rule(
        "certificate-expiring",
        "server.certificate_days < days",
        help="the certificate of the server ends soon",
        limits={"days": 14},
        figures={"days": "server.certificate_days"},
        severity=CRITICAL,
        summary="the certificate {certificate} of {server} ends in {days} days",
        action="Renew it in the same file, then let the server read it: open connections stay.",
        command="openq config reload",
    ),
    _rule(
        "login-attack",
        "increase(server.logins_refused[window]) >= refused or increase(server.lockouts[window]) >= lockouts",
        help="many logins with wrong credentials",
        limits={"refused": 30, "lockouts": 1, "window": 5 * _MINUTE},
        figures={
            "refused": "increase(server.logins_refused[window])",
            "lockouts": "increase(server.lockouts[window])",
        },
        severity=CRITICAL,
        summary="{refused:count login} refused at {server}, lock-outs of addresses: {lockouts:count}{peers}",
        action="Addresses that guess are locked out for a minute at a time. Block them in the firewall, and "
        "give the users that they tried new passwords: `openq user passwd NAME`.",
        command="openq audit ls --action login --outcome refused",
    ),
    _rule(
        "event-loop-lag",
        "server.loop_lag_p99 > seconds",
        help="the server is at its limit",
        limits={"seconds": 0.5},
        figures={"p99": "server.loop_lag_p99"},
        for_s=5 * _MINUTE,
        summary="{server} is at its limit: its event loop is up to {p99:duration} late",
        action="Spread the load over more servers on Redis, or find the queue that causes it.",
        command="openq top --once",
    ),
    _rule(
        "connections-refused",
        "increase(server.connections_refused[5m]) >= count or server.descriptors_share > share",
        help="there are too many connections",
        limits={"count": 1, "share": 0.9},
        figures={"refused": "increase(server.connections_refused[5m])", "share": "server.descriptors_share"},
        summary="{server} refused {refused:count connection}; {share:percent} of its descriptors are used",
        action="Close idle clients, or raise max_connections and the limit of open files, then reload.",
        command="openq config reload",
    ),
)
BY_NAME = {rule.name: rule for rule in BUILTIN}
