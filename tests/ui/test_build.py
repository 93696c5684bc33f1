"""What `make web` has built: its size, its names, and that a strict policy can hold for it."""

from __future__ import annotations

import gzip
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from openq.rest.openapi import document
from openq.rest.routes import ROUTES
from openq.ui.files import STATIC
from openq.ui.handler import CONTENT_SECURITY_POLICY
from tests.isolation import ROOT

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


WEB = ROOT / "web"


@pytest.fixture
def make_types() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_types", WEB / "make_types.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_was_built_with_the_types_of_this_server(make_types: ModuleType) -> None:
    assert (WEB / "src" / "api" / "schema.ts").read_text() == make_types.typescript(document(ROUTES)), (
        "the REST API has changed: make web"
    )


@pytest.mark.ui
def test_a_field_that_the_server_no_longer_has_fails_the_build(
    make_types: ModuleType, tmp_path: Path
) -> None:
    if shutil.which("node") is None:
        pytest.skip("the compiler of TypeScript needs Node.js")
    shutil.copytree(WEB, tmp_path / "web", ignore=shutil.ignore_patterns("node_modules"))
    (tmp_path / "web" / "node_modules").symlink_to(WEB / "node_modules")
    described = document(ROUTES)
    row = described["components"]["schemas"]["ConnectionView"]
    row["properties"]["leased"] = row["properties"].pop("in_flight")
    row["required"] = ["leased" if name == "in_flight" else name for name in row["required"]]
    (tmp_path / "web" / "src" / "api" / "schema.ts").write_text(make_types.typescript(described))

    done = subprocess.run(
        ["npm", "run", "check"],
        cwd=tmp_path / "web",
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ,
    )

    assert done.returncode != 0
    assert "Property 'in_flight' does not exist on type 'ConnectionView'" in done.stdout


def test_make_asks_for_the_types_each_time() -> None:
    """The build depends on what the server describes, not on files that change together with it."""
    asked = subprocess.run(
        ["make", "--dry-run", "web"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert "web/make_types.py" in asked.stdout
