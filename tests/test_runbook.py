"""docs/RUNBOOK.md: every state of health and every alert has a section, and its commands exist."""

from __future__ import annotations

import re
import shlex

import pytest

from openq.alert_rules.builtin import BUILTIN
from openq.broker import damage
from openq.cli.main import find_command
from openq.cli.parser import Parser
from tests.isolation import ROOT

TEXT = (ROOT / "docs" / "RUNBOOK.md").read_text()
ALERTS = (
    # Names that other systems give these alerts; links to them work, too.
    *("dead-letters-arrived", "oldest-message-too-old", "backlog-growing", "no-consumers", "error-rate"),
    *("redelivery-storm", "lease-losses", "disk-filling", "sync-slow", "journal-failed", "loss-window-open"),
    *("replica-missing", "cursor-lag", "certificate-expiring", "login-attack", "schedule-missed"),
    "webhook-disabled",
)
COMMANDS = sorted(set(re.findall(r"^openq .+$", TEXT, re.MULTILINE)))


def sections() -> dict[str, str]:
    """The text of each section, by its anchors."""
    found: dict[str, str] = {}
    for section in re.split(r"^### ", TEXT, flags=re.MULTILINE)[1:]:
        name, _, text = section.partition("\n")
        for anchor in (name, *re.findall(r'<a id="([a-z-]+)">', text)):
            assert anchor not in found
            found[anchor] = text
    return found


def test_every_alert_has_a_section() -> None:
    names = {*ALERTS, *(rule.name for rule in BUILTIN)}

    assert sorted(names - sections().keys()) == []


def test_every_section_has_a_command() -> None:
    assert [name for name, text in sections().items() if "```text\nopenq " not in text] == []


def test_every_text_of_health_is_in_it() -> None:
    """The texts that brokers put into `Health`, taken from their code."""
    code = "".join(
        (ROOT / "src" / "openq" / path).read_text() for path in ("local/broker.py", "redis/servers.py")
    )
    literals = re.findall(r'Health\((?:True|False), "([^"]+)"', code)
    literals += re.findall(r'detail = "([^"]+)"', code) + re.findall(r'what = "([^"]+)"', code)
    literals += ["Redis is full: publishing is refused", "disk full: publishing is", "large messages are"]

    assert set(literals) >= {"closed", "in memory", "journal"}
    assert [each for each in literals if each not in TEXT] == []
    assert [verb for verb in damage._VERBS.values() if verb not in TEXT] == []


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_exists_with_its_options(line: str) -> None:
    words = shlex.split(line.replace("DIR", "data").replace("HOST", "127.0.0.1"))[1:]
    path, command = find_command(words)

    assert command.run, line
    options, unknown = Parser(path, command).parse_known_args(words[len(path) :])
    assert unknown == []
    assert options is not None


def test_links_into_the_page_have_their_sections() -> None:
    named = set(re.findall(r"\]\(#([a-z-]+)\)", TEXT))
    assert named <= sections().keys()
