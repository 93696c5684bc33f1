"""Answers to clients name no directory of the machine, and every other path as it is."""

from __future__ import annotations

import pytest

from openq import errors
from openq.errors import hide_paths, keep_private


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot write /srv/openq/data/users.json", "cannot write users.json"),
        ("/srv/openq/data is full", "the data directory is full"),
        ("cannot open /srv/openq/data.", "cannot open the data directory."),
        ("'/srv/openq/data': in use", "'the data directory': in use"),
        ("/srv/openq/data.toml: Invalid value", "data.toml: Invalid value"),
        ("no room in /srv/openq/data-2026", "no room in data-2026"),
        ("/mnt/srv/openq/data", "/mnt/srv/openq/data"),
        ("/srv/openq/other", "/srv/openq/other"),
    ],
)
def test_a_private_directory_is_not_named(text: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_private", set())
    keep_private("/srv/openq/data")
    assert hide_paths(text) == shown
