"""The command `openq`.

`main.py` finds the command that the words name. `commands/` describes every command as data; `parser.py`,
`help.py`, `completion.py` and `reference.py` (docs/CLI.md) are made from that. The other modules hold the
functions of the commands, and are loaded when one of them is called.

Data goes to stdout, everything else to stderr. Exit codes: 0 success, 1 failure or damage found, 2 wrong
usage, 3 not found, 4 access denied, 5 nothing found or timed out, 130 interrupted.
"""
