"""The package `openq` under the project's own name: `from OpenQ import OpenQ, Producer, Consumer`.

Everything is the same but one default: a `Consumer` from here ends by itself once no message came for 10
seconds, so that a program that starts a producer and a consumer and joins both comes to its end. That of
`openq` runs until it is stopped.
"""

from openq import *  # noqa: F403
from openq import Consumer as _Consumer
from openq import __all__ as __all__
from openq._version import __version__ as __version__


class Consumer(_Consumer):
    __doc__ = _Consumer.__doc__

    default_idle_timeout = 10.0
