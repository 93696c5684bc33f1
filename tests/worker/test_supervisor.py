"""The loop of the supervisor of a worker service."""

from __future__ import annotations

import socket

from openq.worker.options import ServiceOptions
from openq.worker.supervisor import Supervisor


def test_a_reader_that_another_callback_removed_is_not_called() -> None:
    supervisor = Supervisor(ServiceOptions(name="test", unit="test-1"))
    pairs = [socket.socketpair() for _ in range(2)]
    called: list[int] = []

    def remove_both(number: int) -> None:
        called.append(number)
        for reader, writer in pairs:
            supervisor.remove_reader(reader)
            reader.close()
            writer.close()

    for number, (reader, writer) in enumerate(pairs):
        supervisor.add_reader(reader, lambda number=number: remove_both(number))  # type: ignore[misc]
        writer.send(b"x")

    supervisor.call_readers(10)

    assert len(called) == 1
