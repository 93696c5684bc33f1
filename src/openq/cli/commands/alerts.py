"""`openq alert`."""

from __future__ import annotations

from ..spec import Command, Option
from ..values import pair, positive, seconds
from .options import JSON, JSON_LINES, READ, SERVER

_RULE = Option("name", metavar="NAME", help="name of the rule; `openq alert rules` lists them")

COMMANDS = {
    "alert": Command(
        examples=(
            ("openq alert ls", "what is wrong now, and the command for it"),
            ("openq alert show dead-letters", "a rule and its alerts, with figures and what to do"),
            ("openq alert test dead-letters", "send a sample to every destination"),
            ("openq alert silence dead-letters --for 2h", "no notifications for two hours"),
        ),
        commands={
            "ls": Command(
                help="list alerts that are pending or firing",
                run="alerts:ls",
                examples=(
                    ("openq alert ls", "firing ones first"),
                    ("openq alert ls --all", "also those that were resolved within the last hour"),
                    ("openq alert ls --json", "one JSON object per line"),
                ),
                details="Exit code 5 if there are none.",
                options=(
                    Option("--all", action="store_true", help="also resolved ones"),
                    Option("--severity", choices=("info", "warning", "critical"), help="only this severity"),
                    JSON_LINES,
                    *READ,
                ),
            ),
            "show": Command(
                help="show a rule with its alerts, or one alert by its id",
                run="alerts:show",
                examples=(("openq alert show disk-full", "what it means, its limits, and what to do"),),
                options=(
                    Option("name", metavar="NAME|ID", help="name of a rule, or id of an alert"),
                    JSON,
                    *READ,
                ),
            ),
            "rules": Command(
                help="list alert rules with their limits",
                run="alerts:rules",
                examples=(
                    ("openq alert rules", "all, and how many alerts each has"),
                    ("openq alert rules --json", "one JSON object per line"),
                ),
                options=(JSON_LINES, *READ),
            ),
            "set": Command(
                help="change a rule, or add one",
                run="alerts:set_rule",
                examples=(
                    ("openq alert set oldest-message age=1h", "another limit"),
                    ("openq alert set dead-letters --severity critical", "another severity"),
                    ("openq alert set nobody-consumes --off", "no alerts of this rule"),
                    (
                        "openq alert set big-queue --expr 'queue.ready > n' n=5000 "
                        "--summary '{queue} has {value:count} messages'",
                        "a rule of your own",
                    ),
                ),
                details=(
                    "A change outweighs the configuration file of the server, until `openq alert reset NAME`."
                ),
                options=(
                    _RULE,
                    Option(
                        "limits", nargs="*", metavar="LIMIT=VALUE", type=pair, help="limits, such as age=1h"
                    ),
                    Option("--expr", dest="expression", metavar="TEXT", help="the condition"),
                    Option(
                        "--summary", metavar="TEXT", help="what is wrong; {queue} and figures are filled in"
                    ),
                    Option("--action", metavar="TEXT", help="what to do"),
                    Option("--command", dest="advice", metavar="TEXT", help="the command for it"),
                    Option("--severity", choices=("info", "warning", "critical"), help="how bad it is"),
                    Option("--for", dest="for_s", metavar="TIME", type=seconds, help="how long it must hold"),
                    Option(
                        "--keep",
                        metavar="TIME",
                        type=seconds,
                        help="how long it must not hold before it is resolved",
                    ),
                    Option(
                        "--queue",
                        dest="queues",
                        action="append",
                        metavar="PATTERN",
                        help="only these queues; may be repeated",
                    ),
                    Option("--on", action="store_true", one_of="enabled", help="evaluate this rule"),
                    Option("--off", action="store_true", one_of="enabled", help="do not evaluate this rule"),
                    JSON,
                    *SERVER,
                ),
            ),
            "reset": Command(
                help="undo `openq alert set`; a rule of your own is removed",
                run="alerts:reset",
                examples=(("openq alert reset oldest-message", "as the configuration of the server says"),),
                options=(_RULE, JSON, *SERVER),
            ),
            "test": Command(
                help="send a sample of an alert to the destinations and show what they answer",
                run="alerts:test",
                examples=(
                    ("openq alert test dead-letters", "to all destinations"),
                    ("openq alert test disk-full --destination ops", "to one"),
                ),
                details="Exit code 1 if a destination does not accept it, or if there is none.",
                options=(
                    Option("--destination", metavar="NAME", help="only this destination"),
                    Option("name", nargs="?", default="dead-letters", metavar="NAME", help="name of a rule"),
                    JSON,
                    *SERVER,
                ),
            ),
            "destinations": Command(
                help="list the destinations of notifications, with counts and the last error",
                run="alerts:destinations",
                examples=(("openq alert destinations", "as the configuration of the server names them"),),
                options=(JSON_LINES, *READ),
            ),
            "silence": Command(
                help="send no notifications of some alerts for a time",
                run="alerts:silence",
                examples=(
                    ("openq alert silence dead-letters --for 2h", "one rule"),
                    ("openq alert silence '*' --subject 'test-*' --for 1d", "all alerts of some queues"),
                    ("openq alert silence '*' --for 30m --reason upgrade", "everything"),
                ),
                details="Alerts are evaluated and listed all the same.",
                options=(
                    Option(
                        "--for", dest="for_s", metavar="TIME", type=seconds, default=3600.0, help="default 1h"
                    ),
                    Option(
                        "--subject", metavar="PATTERN", default="", help="only these queues, cursors, ..."
                    ),
                    Option("--reason", metavar="TEXT", default="", help="why, for others"),
                    Option("name", metavar="PATTERN", help="names of rules, with * and ?"),
                    JSON,
                    *SERVER,
                ),
            ),
            "silences": Command(
                help="list silences",
                run="alerts:silences",
                examples=(("openq alert silences", "with their ids and ends"),),
                options=(JSON_LINES, *READ),
            ),
            "unsilence": Command(
                help="end a silence",
                run="alerts:unsilence",
                examples=(
                    ("openq alert unsilence 3f9a0c12b4d7", "by its id, as `openq alert silences` shows"),
                ),
                options=(Option("name", metavar="ID", help="id of the silence"), JSON, *SERVER),
            ),
            "history": Command(
                help="list which alerts fired and were resolved",
                run="alerts:history",
                examples=(
                    ("openq alert history", "the last 20, the newest first"),
                    ("openq alert history dead-letters -n 100", "of one rule"),
                ),
                options=(
                    Option(
                        "-n",
                        dest="limit",
                        metavar="N",
                        type=positive,
                        default=20,
                        help="number of entries (default 20)",
                    ),
                    Option("name", nargs="?", metavar="NAME", help="only this rule"),
                    JSON_LINES,
                    *READ,
                ),
            ),
        },
    ),
}
