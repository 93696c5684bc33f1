"""What the client sends in each dialogue. RabbitMQ's answers are in `dialogues.json`.

A module per subject; each call of `script` adds one dialogue to `SCRIPTS`.
"""

from __future__ import annotations

from . import connections as connections
from . import consuming as consuming
from . import dead_letters as dead_letters
from . import exchanges as exchanges
from . import precedence as precedence
from . import publishing as publishing
from . import queues as queues
from .steps import SCRIPTS as SCRIPTS
