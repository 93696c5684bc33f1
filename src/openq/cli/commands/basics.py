"""`openq sample`, `completion` and `version`."""

from __future__ import annotations

from ..spec import Command, Option
from .options import JSON

COMMANDS = {
    "sample": Command(
        run="sample:sample",
        examples=(("openq sample", "the same as `python -m openq.sample`"),),
        details=(
            "A producer, a consumer that sometimes fails, redelivery, dead letters. It runs in memory, needs "
            "no server, leaves nothing behind and ends by itself."
        ),
    ),
    "completion": Command(
        run="completion:completion",
        examples=(
            ("openq completion bash > ~/.local/share/bash-completion/completions/openq", "for bash"),
            ("openq completion zsh > ~/.zfunc/_openq", "for zsh, with ~/.zfunc in fpath"),
            ("openq completion fish > ~/.config/fish/completions/openq.fish", "for fish"),
        ),
        options=(
            Option("shell", choices=("bash", "zsh", "fish"), help="the shell"),
            Option("--json", action="store_true", help="every command with its options as JSON instead"),
        ),
    ),
    "version": Command(
        run="version:version",
        examples=(
            ("openq version", "openq 1.2.3"),
            ("openq version --json", "with the version of Python"),
        ),
        options=(JSON,),
    ),
}
