"""What a user gets: the wheel, installed alone into an empty environment, used from another folder."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT)
    [path] = folder.glob("openq-*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a fresh environment that holds OpenQ and nothing else: no pip, no dependency."""
    environment = tmp_path_factory.mktemp("installed") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    run(*PIP, "--python", environment / "bin" / "python", "install", "--no-deps", "--no-index", wheel)
    return environment / "bin"


def read(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        [member] = [n for n in archive.namelist() if n.endswith(f".dist-info/{name}")]
        return archive.read(member).decode()


def metadata(wheel: Path) -> Message:
    return Parser().parsestr(read(wheel, "METADATA"))


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    assert {"OpenQ.py", "openq/py.typed", "openq/_version.py"} <= set(names)
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {
        "OpenQ.py",
        "openq",
        "pyspark_openq",
    }
    assert any(name.endswith("/LICENSE") for name in names)


def test_every_source_file_is_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    paths = [path for ending in ("*.py", "*.lua") for path in (ROOT / "src").rglob(ending)]
    sources = {path.relative_to(ROOT / "src").as_posix() for path in paths}

    assert sources - names == set()


def test_the_base_install_asks_for_four_packages(wheel: Path) -> None:
    wanted = [line for line in metadata(wheel).get_all("Requires-Dist", []) if "extra ==" not in line]

    assert sorted(line.split(">")[0] for line in wanted) == ["httptools", "msgspec", "uvloop", "websockets"]


def test_the_readme_is_the_description(wheel: Path) -> None:
    # Needs `readme = "README.md"` in pyproject.toml; the build refuses that line while there is no README.
    assert str(metadata(wheel).get_payload()).strip() == (ROOT / "README.md").read_text().strip()


def test_the_entry_points_are_in_the_wheel(wheel: Path) -> None:
    lines = read(wheel, "entry_points.txt").splitlines()

    assert "openq = openq.cli.main:main" in lines
    assert "openq = openq.testing.plugin" in lines


def test_the_founding_import_works_from_another_folder(installed: Path, tmp_path: Path) -> None:
    program = "from OpenQ import OpenQ, Producer, Consumer; import openq; print(OpenQ is openq.OpenQ)"

    assert run(installed / "python", "-c", program, cwd=tmp_path).strip() == "True"


def test_both_names_offer_the_same(installed: Path, tmp_path: Path) -> None:
    program = "import OpenQ, openq; print(OpenQ.__all__ == openq.__all__, OpenQ.__version__)"

    same, version = run(installed / "python", "-c", program, cwd=tmp_path).split()

    assert same == "True"
    assert f'"{version}"' in (ROOT / "src" / "openq" / "_version.py").read_text()


def test_the_command_starts_without_the_server_s_packages(installed: Path, tmp_path: Path) -> None:
    assert "openq" in run(installed / "openq", "--help", cwd=tmp_path)


def test_the_sample_runs_and_ends_by_itself(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "python", "-m", "openq.sample", cwd=tmp_path) != ""


def test_the_build_of_the_dashboard_is_in_the_wheel(tmp_path: Path) -> None:
    """Git ignores what `make web` builds; the wheel carries it all the same, and the sdist too."""
    project = tmp_path / "project"
    project.mkdir()
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, project)
    ours = shutil.ignore_patterns("__pycache__", "static", "*.pyc")
    for name in ("ui", "_version.py"):
        source, copy = ROOT / "src" / "openq" / name, project / "src" / "openq" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, copy, ignore=ours) if source.is_dir() else shutil.copy(source, copy)
    (project / "src" / "OpenQ.py").touch()
    (project / "src" / "pyspark_openq").mkdir()
    modules = project / "web" / "node_modules" / "other"
    modules.mkdir(parents=True)
    (modules / "index.js").touch()
    (project / "web" / "package.json").touch()
    # Newer than all of web/, as a build is: nothing is built again.
    assets = project / "src" / "openq" / "ui" / "static" / "assets"
    assets.mkdir(parents=True)
    built = {"static/index.html", "static/assets/app-1a2b.js", "static/assets/app-1a2b.js.gz"}
    for name in built:
        (assets.parent.parent / name).write_text("built")

    run(sys.executable, "-m", "hatchling", "build", "-d", tmp_path / "dist", cwd=project)

    [path] = (tmp_path / "dist").glob("*.whl")
    names = zipfile.ZipFile(path).namelist()
    wanted = {f"openq/ui/{name}" for name in (*built, "pages/missing.html", "pages/building.html")}
    assert wanted <= set(names)
    [path] = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(path) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/openq/ui/{name}" for name in built} | {"web/package.json"} <= files
    assert not any("node_modules" in name for name in files)


@pytest.mark.parametrize(
    ("command", "failure"),
    [
        ([sys.executable, "-c", "pass"], ""),
        ([sys.executable, "-c", "raise SystemExit(input())"], "exit code 1"),  # nobody is asked
        ([sys.executable, "-c", "import time; time.sleep(600)"], "it took more than 0.1 s"),
        (["no-such-program"], "No such file or directory"),
    ],
)
def test_a_build_goes_on_whatever_fails_in_the_dashboard(command: list[str], failure: str) -> None:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)

    slow = "sleep" in command[-1]
    assert hook.failure_of(command, dict(os.environ), 0.1 if slow else 60.0) == failure


def test_the_wheel_of_a_tree_with_a_dashboard_holds_all_of_it(wheel: Path) -> None:
    static = ROOT / "src" / "openq" / "ui" / "static"
    if not (static / "index.html").exists():
        pytest.skip("the dashboard is not built here: `make web` needs Node.js")
    names = set(zipfile.ZipFile(wheel).namelist())

    files = [path for path in static.rglob("*") if path.is_file()]
    assert {path.relative_to(ROOT / "src").as_posix() for path in files} <= names
