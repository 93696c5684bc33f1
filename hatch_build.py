"""A wheel carries the dashboard: it is built here where `make web` has not done it, and Node.js is found.

Without Node.js the wheel is made without the dashboard, with a warning, and `/ui/` says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
WEB = ROOT / "web"
BUILT = ROOT / "src" / "openq" / "ui" / "static" / "index.html"
NPM_INSTALL = ("install", "--no-save", "--no-audit", "--no-fund", "--loglevel=error")
NPM_NETWORK = ("--fetch-retries=1", "--fetch-timeout=30000")  # of a build without network
MAX_S = 600.0  # of one command


def is_current() -> bool:
    """As make has it: nothing in web/ is newer than the build."""
    if not BUILT.exists():
        return False
    built = BUILT.stat().st_mtime
    made = {"node_modules", "build.log", "schema.ts"}
    sources = (path for path in WEB.rglob("*") if not made.intersection(path.relative_to(WEB).parts))
    return all(path.stat().st_mtime <= built for path in sources if path.is_file())


def has_node() -> bool:
    return all(map(shutil.which, ("node", "npm"))) and (WEB / "package.json").exists()


def failure_of(command: list[str], env: dict[str, str], max_s: float = MAX_S) -> str:
    """Why a command failed; empty if it did not."""
    program = shutil.which(command[0]) or command[0]  # npm is a script on Windows
    try:
        done = subprocess.run(
            [program, *command[1:]],
            env=env,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            timeout=max_s,
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {max_s:g} s"
    except OSError as error:
        return error.strerror or str(error)
    return f"exit code {done.returncode}" if done.returncode else ""


class DashboardHook(BuildHookInterface):  # type: ignore[type-arg]
    def dependencies(self) -> list[str]:
        """What `web/make_types.py` imports: the REST API, whose types the page is built with.

        An editable install builds nothing and is asked all the same; `make run` has no seconds for it. The
        name of the hook that pip runs is in the arguments of its process.
        """
        is_editable = any(word.endswith("_editable") for word in sys.argv)
        return [] if is_editable or is_current() or not has_node() else list(self.metadata.core.dependencies)

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or is_current():
            return
        if not has_node():
            if not BUILT.exists():
                self.app.display_warning(
                    "the dashboard is not in this build: it needs Node.js 20 or later, with npm"
                )
            return
        # An isolated build has its packages by PYTHONPATH, too.
        paths = filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH")))
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        for command in (
            [sys.executable, str(WEB / "make_types.py")],
            ["npm", "--prefix", str(WEB), *NPM_INSTALL, *NPM_NETWORK],
            ["npm", "--prefix", str(WEB), "run", "build"],
        ):
            failure = failure_of(command, env)
            if failure:
                self.app.display_warning(f"the dashboard could not be built: {' '.join(command)}: {failure}")
                return
