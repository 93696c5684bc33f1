"""The application of `openq worker MODULE:APP`: imported, or an error that says where and why not."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from types import ModuleType
from typing import Any

from ..errors import OpenQError
from .reload import Stamps, stamp_of

DEFAULT_NAME = "app"
SPARED = ("<frozen ", os.path.dirname(importlib.__file__))  # frames of the import system


class AppNotLoaded(OpenQError):
    """The module of an application could not be imported, or has no such application."""

    code = "app_not_loaded"


def split_reference(reference: str) -> tuple[str, str]:
    """`module:app` as its two names; `app` is the default of the second."""
    module, colon, name = reference.partition(":")
    if not module or (colon and not name) or not all(part.isidentifier() for part in module.split(".")):
        raise AppNotLoaded(f"an application is MODULE:APP, such as shop.tasks:app, not {reference!r}")
    return module, name or DEFAULT_NAME


def load_object(reference: str) -> Any:
    """Import the module and return the object. Raises AppNotLoaded with file, line and exception."""
    module_name, name = split_reference(reference)
    module = import_module(module_name)
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise AppNotLoaded(f"{_where(module)} has no {name!r}{_other_names(module)}") from None
    return found


def import_module(name: str) -> ModuleType:
    # As `python -m` does: the modules of the working directory come first.
    if sys.path[:1] not in ([""], [os.getcwd()]):
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise AppNotLoaded(
                f"no module named {error.name!r} in {os.getcwd()} or on the Python path"
            ) from None
        raise AppNotLoaded(describe_failure(name, error)) from error
    except Exception as error:
        raise AppNotLoaded(describe_failure(name, error)) from error
    except SystemExit as error:
        raise AppNotLoaded(f"module {name!r} exited with {error.code!r} when it was imported") from error


def describe_failure(module: str, error: BaseException) -> str:
    """One line: the innermost line of the user's code, and the exception."""
    what = traceback.format_exception_only(type(error), error)[-1].strip()
    if isinstance(error, SyntaxError) and error.filename:
        return f"cannot import {module!r}: {error.filename}:{error.lineno}: {what}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(SPARED) and frame.filename != __file__
    ]
    where = f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""
    return f"cannot import {module!r}: {where}{what}"


def _where(module: ModuleType) -> str:
    path = getattr(module, "__file__", None)
    return f"module {module.__name__!r} ({path})" if path else f"module {module.__name__!r}"


def _other_names(module: ModuleType) -> str:
    from .app import App

    names = [name for name, value in vars(module).items() if isinstance(value, App)]
    if names:
        return f"; it has {module.__name__}:{names[0]}"
    return "; an application is made by `app = App(...)` of openq.worker"


def source_files() -> Stamps:
    """The files of the imported modules that belong to the project, as they are now; for --reload.

    These are files outside of the installation of Python and its packages.
    """
    installed = {os.path.realpath(path) for path in (sys.prefix, sys.base_prefix)}
    own = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    found = set()
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if not path or not path.endswith(".py"):
            continue
        real = os.path.realpath(path)
        parts = real.split(os.sep)
        if "site-packages" in parts or "dist-packages" in parts or real.startswith(own + os.sep):
            continue
        if any(real.startswith(prefix + os.sep) for prefix in installed) and "lib" in parts:
            continue
        found.add(real)
    return {path: stamp_of(path) for path in sorted(found)}
