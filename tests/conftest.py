"""What every test shares: as little as possible."""

import pytest
from hypothesis import settings

# No deadline per example: a busy machine is not a bug.
settings.register_profile("openq", deadline=None)
settings.load_profile("openq")

# What takes longest goes first: a file is run by one process as a whole, and the last should be a short one.
# Those with a cluster or a Spark of their own stand beside one without.
FIRST = (
    "tests/pipeline/test_cluster.py",
    "tests/crash/test_server.py",
    "tests/pipeline/test_exactly_once.py",
    "tests/engine/test_model.py",
    "tests/pipeline/",
    "tests/clients/",
    "tests/crash/",
    "tests/redis/test_columns.py",
    "tests/redis/",
)


def pytest_configure(config: pytest.Config) -> None:
    # pytest-xdist would begin with the files that have most tests, and they are the quick ones.
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_turn)  # stable: inside of a file nothing moves


def _turn(item: pytest.Item) -> int:
    return next((turn for turn, start in enumerate(FIRST) if item.nodeid.startswith(start)), len(FIRST))
