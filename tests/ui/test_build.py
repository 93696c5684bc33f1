"""What `make web` has built: its size, its names, and that a strict policy can hold for it."""

from __future__ import annotations

import gzip
import re

import pytest

from openq.ui.files import STATIC
from openq.ui.handler import CONTENT_SECURITY_POLICY

MAX_BYTES = 150 * 1024  # of everything, compressed
MAX_FIRST_BYTES = 90 * 1024  # of what the first screen loads

pytestmark = pytest.mark.skipif(
    not (STATIC / "index.html").exists(),
    reason="the dashboard is not built: `make web` needs Node.js 20 or later",
)


def sizes() -> dict[str, int]:
    """Bytes of each file as it is sent to a browser."""
    return {path.name.removesuffix(".gz"): path.stat().st_size for path in STATIC.rglob("*.gz")}


def loaded_with(name: str, found: set[str]) -> set[str]:
    """A file of the build, and what it imports at once."""
    if name not in found:
        found.add(name)
        text = (STATIC / "assets" / name).read_text()
        for other in re.findall(r'(?:import|from) ?"\./([\w.-]+)"', text):
            loaded_with(other, found)
    return found


def test_the_bundle_is_small() -> None:
    found = sizes()
    index = (STATIC / "index.html").read_text()
    first: set[str] = set()
    for name in re.findall(r'assets/([\w.-]+\.js)"', index):
        loaded_with(name, first)
    [overview] = [name for name in found if re.fullmatch(r"overview-[\w-]+\.js", name)]
    loaded_with(overview, first)
    first |= {name for name in found if name.startswith(("index-", "chart-")) and name.endswith(".css")}

    assert sum(found.values()) <= MAX_BYTES
    assert sum(found[name] for name in first) <= MAX_FIRST_BYTES


def test_every_text_file_is_compressed_as_it_is() -> None:
    texts = [path for path in STATIC.rglob("*") if path.suffix in (".js", ".css", ".html")]
    assert len(texts) > 10
    for path in texts:
        assert gzip.decompress(path.with_name(f"{path.name}.gz").read_bytes()) == path.read_bytes(), path


def test_names_have_a_hash_and_nothing_is_inline_or_of_another_host() -> None:
    index = (STATIC / "index.html").read_text()
    assert all(
        re.fullmatch(r"[\w-]+-[\w-]{8}\.(js|css)(\.gz)?", each.name) for each in (STATIC / "assets").iterdir()
    )
    assert re.findall(r"<script(?![^>]*\bsrc=)", index) == []
    assert "<style" not in index
    assert " style=" not in index
    assert all(url.startswith("/ui/") for url in re.findall(r'(?:src|href)="([^"]+)"', index))
    assert b"unsafe" not in CONTENT_SECURITY_POLICY
    # Namespaces of XML are names, not addresses.
    foreign = {
        url
        for path in (STATIC / "assets").glob("*.js")
        for url in re.findall(r"https?://[\w.-]+", path.read_text())
        if not url.startswith("http://www.w3.org")
    }
    # Placeholders of forms, and the default addresses in lines to copy.
    assert foreign <= {"https://example.com", "http://127.0.0.1", "http://localhost"}, foreign
