"""`openq completion bash|zsh|fish`: scripts made from the descriptions of the commands, with every option."""

from __future__ import annotations

from argparse import Namespace

from .commands import load_all
from .output import print_json
from .spec import Command
from .terminal import OK

Entry = tuple[tuple[str, ...], Command]  # the words of a command, and its description


def completion(options: Namespace) -> int:
    entries = list(load_all().walk())
    if options.json:
        print_json(
            {" ".join(words): [*command.commands, *flags(words, command)] for words, command in entries}
        )
    else:
        print({"bash": bash, "zsh": zsh, "fish": fish}[options.shell](entries))
    return OK


def flags(words: tuple[str, ...], command: Command) -> list[str]:
    found = {flag for option in command.options for flag in option.flags if flag.startswith("--")}
    return sorted(found | {"--help"} | (set() if words else {"--version"}))


def _summary(command: Command) -> str:
    return command.description.splitlines()[0].rstrip(".").replace("'", "").replace(":", "")


def bash(entries: list[Entry]) -> str:
    known = "|".join(f'" {" ".join(words)}"' for words, _ in entries if words)
    cases = []
    for words, command in entries:
        place = "".join(f" {word}" for word in words)
        cases.append(f'        "{place}") words="{" ".join([*command.commands, *flags(words, command)])}" ;;')
    return "\n".join(
        [
            "# Completion of openq for bash; made by `openq completion bash`.",
            "_openq() {",
            '    local current="${COMP_WORDS[COMP_CWORD]}" path="" word words=""',
            '    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
            '        case "$path $word" in',
            f'            {known}) path="$path $word" ;;',
            "        esac",
            "    done",
            '    case "$path" in',
            *cases,
            "    esac",
            '    COMPREPLY=($(compgen -W "$words" -- "$current"))',
            "}",
            "complete -o default -F _openq openq",
        ]
    )


def zsh(entries: list[Entry]) -> str:
    known = "|".join(f'" {" ".join(words)}"' for words, _ in entries if words)
    cases = []
    for words, command in entries:
        verbs = " ".join(f"'{name}:{_summary(verb)}'" for name, verb in command.commands.items())
        cases.append(f'        "{"".join(f" {word}" for word in words)}")')
        if verbs:
            cases.append(f"            verbs=({verbs})")
        cases.append(f"            options=({' '.join(flags(words, command))}) ;;")
    return "\n".join(
        [
            "#compdef openq",
            "# Completion of openq for zsh; made by `openq completion zsh`.",
            "_openq() {",
            '    local place="" word',
            "    local -a verbs options",
            '    for word in "${(@)words[2,CURRENT-1]}"; do',
            '        case "$place $word" in',
            f'            {known}) place="$place $word" ;;',
            "        esac",
            "    done",
            '    case "$place" in',
            *cases,
            "    esac",
            "    if (( $#verbs )); then _describe 'command' verbs; fi",
            '    if [[ "$PREFIX" == -* ]]; then compadd -- $options; elif (( ! $#verbs )); then _files; fi',
            "}",
            "compdef _openq openq",
        ]
    )


def fish(entries: list[Entry]) -> str:
    known = " ".join(f"'{' '.join(words)}'" for words, _ in entries if words)
    lines = [
        "# Completion of openq for fish; made by `openq completion fish`.",
        "function __openq_place",
        "    set -l place ''",
        "    for word in (commandline -opc)[2..-1]",
        '        set -l longer (string trim -- "$place $word")',
        f"        if contains -- $longer {known}",
        "            set place $longer",
        "        end",
        "    end",
        '    test "$place" = "$argv"',
        "end",
    ]
    for words, command in entries:
        where = f"complete -c openq -n '__openq_place {' '.join(words)}'"
        lines += [f"{where} -f -a {name} -d '{_summary(verb)}'" for name, verb in command.commands.items()]
        lines += [f"{where} -l {flag.removeprefix('--')}" for flag in flags(words, command)]
    return "\n".join(lines)
