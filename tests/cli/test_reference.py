"""docs/CLI.md is up to date, and every example in it can be parsed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from openq.cli.commands import load_all
from openq.cli.main import find_command
from openq.cli.parser import Parser
from openq.cli.reference import reference
from openq.config import KEYS, variable_of

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "CLI.md"
COMMANDS = {words: command for words, command in load_all().walk() if words}
EXAMPLES = sorted({example for command in COMMANDS.values() for example, _ in command.examples})


def test_the_document_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == reference(), "python -m openq.cli.reference > docs/CLI.md"


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_its_heading(words: tuple[str, ...]) -> None:
    assert f"\n### openq {' '.join(words)}\n" in DOCUMENT.read_text()


@pytest.mark.parametrize("key", KEYS)
def test_every_key_of_the_configuration_is_described(key: str) -> None:
    assert f"| `{variable_of(key)}` | `{key}` |" in DOCUMENT.read_text()


@pytest.mark.parametrize("words", [words for words, command in COMMANDS.items() if command.run], ids=" ".join)
def test_every_command_has_an_example_of_itself(words: tuple[str, ...]) -> None:
    examples = COMMANDS[words].examples

    assert any(f"openq {' '.join(words)}" in example for example, _ in examples)


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_can_be_parsed(example: str) -> None:
    words = shlex.split(example)
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    for end in (">", "<", "|"):
        if end in words:
            words = words[: words.index(end)]

    assert words[0] == "openq"
    path, command = find_command(words[1:])
    assert command.run
    _, unknown = Parser(path, command).parse_known_args(words[1 + len(path) :])
    assert unknown == []


def test_no_example_contains_a_secret() -> None:
    assert not [each for each in EXAMPLES if re.search(r"--token |--password \S+=|oq_", each)]
