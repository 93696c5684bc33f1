"""A queue on disk: when `publish` returns, the message survives a crash and a power cut."""

import tempfile

from openq import OpenQ

with tempfile.TemporaryDirectory() as folder:
    with OpenQ("orders", path=folder, visibility_timeout=60) as queue:
        queue.publish_many([{"order": number} for number in range(3)])
        with queue.processing() as message:
            print("first run: done", message.body if message else None)

    # Another day, another process: settings, order and counts are as they were.
    with OpenQ("orders", path=folder) as queue:
        print("second run: visibility timeout", queue.visibility_timeout)
        for message in queue.receive_many(10, timeout=1.0):
            print("second run: done", message.body)
            message.ack()
        print("left in the queue:", len(queue))
