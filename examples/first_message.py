"""The first message: publish, receive, ack. Nothing to install beside OpenQ, nothing to run."""

from openq import OpenQ

queue = OpenQ("greetings")
message_id = queue.publish("hello")
print("published", message_id)

message = queue.receive(timeout=1.0)
assert message is not None
print("received ", message.id, repr(message.body))

queue.ack(message)
print("left in the queue:", len(queue))

# A body may be text, bytes, or anything that JSON can say; it comes back as it was.
queue.publish({"order": 17, "items": ["tea", "cups"]})
with queue.processing(timeout=1.0) as message:  # acks at the end, gives back on an exception
    assert message is not None
    print("order", message.body["order"], "has", len(message.body["items"]), "items")
