"""What goes first, and what goes later."""

from datetime import UTC, datetime, timedelta

from openq import OpenQ

queue = OpenQ("tasks")
queue.publish("sweep the floor")
queue.publish("put out the fire", priority=9)
queue.publish("ring the bell", delay=0.2)
queue.publish("go home", at=datetime.now(UTC) + timedelta(seconds=0.4))
reminder = queue.publish("water the flowers", delay=3600)

print("why not the flowers?", queue.why(reminder).text)
queue.reschedule(reminder, delay=0.3)

for _ in range(5):
    with queue.processing(timeout=2.0) as message:
        print(message.body if message else "nothing")
