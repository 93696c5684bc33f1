"""The package `openq` under the project's own name: `from OpenQ import OpenQ, Producer, Consumer`."""

from openq import *  # noqa: F403
from openq import __all__ as __all__
from openq._version import __version__ as __version__
