"""FIFO groups: the messages of one customer strictly one after the other, customers side by side."""

from openq import OpenQ

queue = OpenQ("accounts", fifo=True)
for customer, what in [("ann", "open"), ("ann", "deposit 5"), ("bob", "open"), ("ann", "close")]:
    queue.publish(what, group=customer)

first = queue.receive(timeout=0)
second = queue.receive(timeout=0)
assert first is not None
assert second is not None
print(first.group, first.body)
print(second.group, second.body)
print("nothing more while both are in work:", queue.receive(timeout=0))

first.ack()
for message in queue.receive_many(10, timeout=0):
    print(message.group, message.body)
    message.ack()

# The same message sent twice, say after a lost answer, is one message.
once = queue.publish("transfer 7", group="ann", dedup_id="transfer-7")
again = queue.publish("transfer 7", group="ann", dedup_id="transfer-7")
print("the same:", once == again)
