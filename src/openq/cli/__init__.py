"""The command `openq`: `main.py` and one file per group of commands.

Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 failed or damage found, 2 wrong
usage, 3 not found, 4 denied, 5 nothing there or too late, 130 interrupted.
`reference.py` makes docs/CLI.md of the parsers.
"""
