"""`openq completion bash|zsh|fish`: scripts made from the parsers, so that they know every option."""

from __future__ import annotations

from .parser import CommandGroup, Parser, add_json
from .terminal import OK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    Place = tuple[tuple[str, ...], Parser]  # the words of a command, and its parser

SHELLS = ("bash", "zsh", "fish")


def add(name: str, verbs: CommandGroup, help: str) -> None:
    completion = verbs.add(
        name,
        _print,
        help,
        [
            ("openq completion bash > ~/.local/share/bash-completion/completions/openq", "for bash"),
            ("openq completion zsh > ~/.zfunc/_openq", "for zsh, with ~/.zfunc in fpath"),
            ("openq completion fish > ~/.config/fish/completions/openq.fish", "for fish"),
        ],
    )
    completion.add_argument("shell", choices=SHELLS, help="which shell")
    add_json(completion, "every command with its options as JSON instead")


def _print(options: Namespace) -> int:
    from .main import build

    parser, _ = build()
    places = list(walk(parser, ()))
    if options.json:
        import json

        print(json.dumps({" ".join(words): [*below.commands, *flags(below)] for words, below in places}))
    else:
        print({"bash": bash, "zsh": zsh, "fish": fish}[options.shell](places))
    return OK


def walk(parser: Parser, words: tuple[str, ...]) -> Iterator[Place]:
    yield words, parser
    for name, below in parser.commands.items():
        yield from walk(below, (*words, name))


def flags(parser: Parser) -> list[str]:
    return sorted(flag for flag in parser._option_string_actions if flag.startswith("--"))


def _summary(parser: Parser) -> str:
    return (parser.description or "").splitlines()[0].rstrip(".").replace("'", "").replace(":", "")


def bash(places: list[Place]) -> str:
    known = "|".join(f'" {" ".join(words)}"' for words, _ in places if words)
    cases = []
    for words, below in places:
        place = "".join(f" {word}" for word in words)
        cases.append(f'        "{place}") words="{" ".join([*below.commands, *flags(below)])}" ;;')
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


def zsh(places: list[Place]) -> str:
    known = "|".join(f'" {" ".join(words)}"' for words, _ in places if words)
    cases = []
    for words, below in places:
        verbs = " ".join(f"'{name}:{_summary(verb)}'" for name, verb in below.commands.items())
        cases.append(f'        "{"".join(f" {word}" for word in words)}")')
        if verbs:
            cases.append(f"            verbs=({verbs})")
        cases.append(f"            options=({' '.join(flags(below))}) ;;")
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


def fish(places: list[Place]) -> str:
    known = " ".join(f"'{' '.join(words)}'" for words, _ in places if words)
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
    for words, below in places:
        where = f"complete -c openq -n '__openq_place {' '.join(words)}'"
        lines += [f"{where} -f -a {name} -d '{_summary(verb)}'" for name, verb in below.commands.items()]
        lines += [f"{where} -l {flag.removeprefix('--')}" for flag in flags(below)]
    return "\n".join(lines)
