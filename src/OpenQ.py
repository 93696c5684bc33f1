"""The package `openq` under the project's own name: `from OpenQ import OpenQ, Producer, Consumer`.

One default differs: a `Consumer` from here ends after 10 seconds without a message, so that a program that
joins its producer and consumer ends. A `Consumer` of `openq` runs until it is stopped.
"""

from openq import *  # noqa: F403
from openq import Consumer as _Consumer
from openq import __all__ as __all__
from openq._version import __version__ as __version__


class Consumer(_Consumer):
    __doc__ = _Consumer.__doc__

    default_idle_timeout = 10.0
