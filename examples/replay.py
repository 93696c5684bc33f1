"""Replay: a work queue that can be read again from a point in time or from a message on."""

from openq import OpenQ

queue = OpenQ("events")
ids = [queue.publish({"event": number}) for number in range(5)]
for message in queue.receive_many(5, timeout=0):
    message.ack()
print("after the work:", len(queue))

# The consumer had a bug from event 2 on: have those again.
print("replayed:", queue.replay_from(ids[2]))
print([message.body["event"] for message in queue.queue])
print("replayed again, nothing is doubled:", queue.replay_from(ids[2]))

queue.purge()
print("everything of the last hour:", queue.replay_from(queue.broker.now_ms() / 1000 - 3600))
print("the story of event 0:", [step.what for step in queue.timeline(ids[0])])
