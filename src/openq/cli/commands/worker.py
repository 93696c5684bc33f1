"""`openq worker`, `openq top` and `openq series`."""

from __future__ import annotations

from ..spec import Command, Option
from ..values import count, positive, queue_weights, seconds, size
from .options import JSON, JSON_LINES, SERVER

_RUNS = "what is run (one of them)"
_LIMITS = "processes and limits"
_BROKER = "broker of --exec and --http"
_NAME = Option("worker", metavar="WORKER", help="name of a worker, or of one of its processes")

COMMANDS = {
    "worker": Command(
        default="run",
        examples=(
            ("openq worker shop.tasks:app", "run the tasks of an application; short for `openq worker run`"),
            (
                "openq worker shop.tasks:app --processes 4 --queues mail,orders:2",
                "four processes, two queues",
            ),
            ("openq worker --exec ./resize.sh --queue images", "a program for each message"),
            ("openq worker ls", "every worker, and what it runs now"),
            ("openq worker stop web1-4711", "finish what runs, then end"),
        ),
        details=(
            "`openq worker MODULE:APP` is short for `openq worker run MODULE:APP`; "
            "`openq worker run --help` shows its options."
        ),
        commands={
            "run": Command(
                help="run the tasks of an application, a program or an HTTP endpoint for each message",
                run="worker:run",
                examples=(
                    ("openq worker run shop.tasks:app", "the object `app` of the module shop.tasks"),
                    ("openq worker shop.tasks:app", "the same"),
                    (
                        "openq worker shop.tasks:app --processes 4 --threads 8 --queues mail,orders:2",
                        "orders get twice the turns of mail",
                    ),
                    ("openq worker shop.tasks:app --reload", "restart when a source file changes"),
                    (
                        "openq worker --exec 'convert - out.png' --queue images --timeout 1m",
                        "the body on stdin; exit code 0 acks, 75 tries later, others nack",
                    ),
                    (
                        "openq worker --http http://127.0.0.1:8000/jobs --queue jobs",
                        "POST each message; 2xx acks",
                    ),
                ),
                details=(
                    "SIGTERM or Ctrl-C finishes what runs within --grace and gives back the rest at once; a "
                    "second one gives back everything. SIGHUP is a rolling restart with the code as it is "
                    "then. Processes that crash are replaced; brokers that restart are waited for."
                ),
                options=(
                    Option(
                        "app",
                        nargs="?",
                        group=_RUNS,
                        metavar="MODULE:APP",
                        help="module and name of the application (OPENQ_WORKER_APP)",
                    ),
                    Option(
                        "--exec",
                        group=_RUNS,
                        metavar="COMMAND",
                        help="shell command for each message: body on stdin, the rest as OPENQ_... variables",
                    ),
                    Option("--http", group=_RUNS, metavar="URL", help="URL to which each message is posted"),
                    Option(
                        "--queues",
                        "--queue",
                        metavar="NAME[:WEIGHT],...",
                        type=queue_weights,
                        help="queues to receive from (default: all of the application); a higher weight "
                        "gets more turns",
                    ),
                    Option(
                        "--processes",
                        group=_LIMITS,
                        metavar="N",
                        type=positive,
                        default=1,
                        help="number of processes (default 1)",
                    ),
                    Option(
                        "--threads",
                        group=_LIMITS,
                        metavar="N",
                        type=positive,
                        default=8,
                        help="jobs that each process runs at once (default 8)",
                    ),
                    Option(
                        "--coroutines",
                        group=_LIMITS,
                        metavar="N",
                        type=positive,
                        default=100,
                        help="coroutines that each process runs at once, besides its threads (default 100)",
                    ),
                    Option(
                        "--prefetch",
                        group=_LIMITS,
                        metavar="N",
                        type=count,
                        help="messages that a process holds ready (default: fitted to how long tasks take)",
                    ),
                    Option(
                        "--grace",
                        group=_LIMITS,
                        metavar="TIME",
                        type=seconds,
                        default=30.0,
                        help="time for running jobs to finish after SIGTERM (default 30s)",
                    ),
                    Option(
                        "--max-tasks",
                        group=_LIMITS,
                        metavar="N",
                        type=positive,
                        help="replace a process after about N tasks",
                    ),
                    Option(
                        "--max-memory",
                        group=_LIMITS,
                        metavar="SIZE",
                        type=size,
                        help="replace a process that uses more memory, such as 512MiB",
                    ),
                    Option(
                        "--timeout",
                        group=_LIMITS,
                        metavar="TIME",
                        type=seconds,
                        help="time for one --exec or --http (--http: default 30s); then it is killed and "
                        "nacked",
                    ),
                    Option(
                        "--retry-delay",
                        group=_LIMITS,
                        metavar="TIME",
                        type=seconds,
                        default=30.0,
                        help="delay after exit code 75, or 429 or 503 without Retry-After (default 30s)",
                    ),
                    Option(
                        "--no-preload",
                        action="store_true",
                        help="each process imports the application itself (default: imported once and "
                        "shared, unless the import leaves threads or connections behind)",
                    ),
                    Option("--reload", action="store_true", help="restart when a source file changes"),
                    Option(
                        "--health-port",
                        metavar="PORT",
                        type=count,
                        help="port on 127.0.0.1 for /healthz, /readyz and /metrics; 0 takes a free one",
                    ),
                    Option("--name", help="name of the worker (default HOST-PID)"),
                    Option(
                        "--log-level",
                        choices=("debug", "info", "warning", "error"),
                        default="info",
                        help="minimum log level (default info)",
                    ),
                    Option(
                        "--json",
                        action="store_true",
                        help="one JSON line when ready and when stopped; the log as JSON lines",
                    ),
                    Option(
                        "--url",
                        group=_BROKER,
                        help="address of a server or Redis (OPENQ_URL; default http://127.0.0.1:9324)",
                    ),
                    Option(
                        "--data", group=_BROKER, metavar="DIR", help="data directory that no process uses"
                    ),
                    Option("--token", group=_BROKER, help="bearer token (better: OPENQ_TOKEN)"),
                    Option("--token-file", group=_BROKER, metavar="FILE", help="file that holds the token"),
                    Option("--ca", group=_BROKER, metavar="FILE", help="CA certificate to trust (OPENQ_CA)"),
                ),
            ),
            "ls": Command(
                help="list the workers and what they run",
                run="workers:ls",
                examples=(
                    ("openq worker ls", "one line per process"),
                    ("openq worker ls --json", "one JSON object per process"),
                ),
                options=(JSON_LINES, *SERVER),
            ),
            "show": Command(
                help="show a worker: its processes, queues and running jobs",
                run="workers:show",
                examples=(("openq worker show web1-4711", "the name is in `openq worker ls`"),),
                options=(_NAME, JSON, *SERVER),
            ),
            "quiet": Command(
                help="let a worker finish what it has, and receive nothing more",
                run="workers:quiet",
                examples=(("openq worker quiet web1-4711", "before a deployment; `stop` ends it"),),
                options=(_NAME, JSON, *SERVER),
            ),
            "stop": Command(
                help="let a worker finish what runs within its grace period, and end",
                run="workers:stop",
                examples=(
                    ("openq worker stop web1-4711", "all of its processes"),
                    ("openq worker stop web1-4711.2", "one process, which is not replaced"),
                ),
                options=(_NAME, JSON, *SERVER),
            ),
        },
    ),
    "top": Command(
        run="top:top",
        examples=(
            ("openq top", "alerts, queues, rates, ages, consumers, workers and running jobs; q quits"),
            ("openq top --sort age", "the queues with the oldest messages first"),
            ("openq top --interval 5s", "a new frame every five seconds"),
            ("openq top --once", "print one frame"),
            ("openq top --once --json", "for programs"),
        ),
        options=(
            Option(
                "--interval",
                metavar="TIME",
                type=seconds,
                default=2.0,
                help="time between frames (default 2s)",
            ),
            Option(
                "--sort",
                choices=(
                    *("load", "name", "ready", "flight", "age"),
                    *("in", "out", "done", "errors", "consumers"),
                ),
                default="load",
                help="order of the queues (default load); on a terminal the first letter chooses it, too",
            ),
            Option("--once", action="store_true", help="print one frame and exit"),
            Option("--json", action="store_true", help="frames as JSON, one object per line"),
            *SERVER,
        ),
    ),
    "series": Command(
        run="series:series",
        examples=(
            ("openq series orders", "what happened in the last hour"),
            ("openq series orders published acked ready --since 1d --step 15m", "some counts of a day"),
            ("openq series '*' --since 30d", "all queues together, for administrators"),
            ("openq series orders --json", "for programs"),
        ),
        details=(
            "The server keeps seconds for an hour, minutes for a day and quarters of an hour for 30 days, of "
            "all queues together and of the 38 busiest ones. Counts are sums over a step; `ready`, `delayed` "
            "and `in_flight` are those at its end, `oldest_age` is the maximum, `wait` and `publish_to_ack` "
            "are averages in seconds."
        ),
        options=(
            Option("queue", metavar="QUEUE", help="name of the queue, or '*' for all queues together"),
            Option("names", nargs="*", metavar="NAME", help="counts to show, such as published or ready"),
            Option(
                "--since",
                metavar="TIME",
                type=seconds,
                default=3_600.0,
                help="how far to look back (default 1h)",
            ),
            Option(
                "--step", metavar="TIME", type=seconds, help="length of a step (default: about 100 steps)"
            ),
            JSON,
            *SERVER,
        ),
    ),
}
