"""The servers of the AMQP benches: RabbitMQ, OpenQ, and one that only finds the ends of frames."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from .amqp_load import SocketLink
from .server_load import RequestRefused
from .server_processes import ROOT, NotAvailable, OpenQ, ServerProcess, free_port

_DEBIAN = "/usr/lib/rabbitmq/bin/rabbitmq-server"
_EPMD_WAIT = "until epmd -port $ERL_EPMD_PORT -names >/dev/null 2>&1; do sleep 0.05; done"


class AmqpPeer(ServerProcess):
    @property
    def amqp_port(self) -> int:
        return self.port

    def is_ready(self) -> bool:
        try:
            SocketLink(self.amqp_port).close()
        except RequestRefused:
            return False
        return True


class RabbitMq(AmqpPeer):
    """As Debian ships it, without plugins; a node of its own, which leaves any other on the machine alone."""

    name = "RabbitMQ"

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self._epmd_port, self._distribution_port = free_port(), free_port()

    @classmethod
    def obtain(cls) -> None:
        if cls._script() is None or shutil.which("epmd") is None:
            raise NotAvailable("it is not installed; `apt-get install rabbitmq-server` brings it")

    @staticmethod
    def _script() -> str | None:
        """Debian's command in PATH is a wrapper that changes the user; the one behind it does not."""
        return _DEBIAN if os.access(_DEBIAN, os.X_OK) else shutil.which("rabbitmq-server")

    def argv(self) -> list[str]:
        # Erlang would start its name server as a daemon, which outlives it; this one ends with our session.
        epmd = "epmd -address 127.0.0.1 -port $ERL_EPMD_PORT &"
        return ["sh", "-c", f'{epmd} {_EPMD_WAIT}; exec "$0"', str(self._script())]

    def env(self) -> Mapping[str, str]:
        folder = Path(self.folder)
        (folder / "plugins").write_text("[].\n", "ascii")
        (folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\nlog.file.level = warning\n", "ascii"
        )
        return {
            "HOME": self.folder,
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_MNESIA_BASE": f"{folder}/mnesia",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_PID_FILE": f"{folder}/pid",
            "ERL_AFLAGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }


class OpenQAmqp(OpenQ, AmqpPeer):
    """`OpenQ` with its AMQP port."""

    def __init__(self, folder: str, *, durable: bool) -> None:
        self._amqp_port = free_port()
        super().__init__(folder, "--amqp-port", str(self._amqp_port), durable=durable)

    @property
    def amqp_port(self) -> int:
        return self._amqp_port

    def is_ready(self) -> bool:
        return OpenQ.is_ready(self) and AmqpPeer.is_ready(self)


class Walker(ServerProcess):
    name = "frame walker"

    def argv(self) -> list[str]:
        return [sys.executable, "-m", "bench.amqp_walker", str(self.port)]

    def env(self) -> Mapping[str, str]:
        return {"PYTHONPATH": str(ROOT)}

    def is_ready(self) -> bool:
        SocketLink(self.port, greets=False).socket.close()
        return True


class AmqpQueues:
    """A new durable queue for every lap; the one before is deleted, with whatever was left in it."""

    _numbers = itertools.count(1)

    def __init__(self, peer: AmqpPeer, kind: str = "") -> None:
        self._port = peer.amqp_port
        self._kind = kind
        self._last = ""

    def next(self) -> str:
        link = SocketLink(self._port)
        if self._last:
            link.delete(self._last)
        self._last = f"bench-{next(self._numbers):06d}"
        link.declare(self._last, self._kind)
        link.close()
        return self._last
