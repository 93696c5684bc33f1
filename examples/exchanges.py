"""One publish, several queues: a topic exchange decides who gets it, atomically."""

from openq import OpenQ
from openq.engine.routing import Binding, Exchange
from openq.local.broker import LocalBroker
from openq.model import ENCODING_TEXT, Draft

broker = LocalBroker()
billing = OpenQ("billing", broker=broker)
audit = OpenQ("audit", broker=broker)

broker.exchanges.declare_exchange(Exchange("orders", "topic"))
broker.exchanges.bind(Binding("orders", "billing", key="order.paid"))
broker.exchanges.bind(Binding("orders", "audit", key="order.#"))

for key in ("order.created", "order.paid"):
    message_id, queues = broker.exchanges.route("orders", key, Draft(key.encode(), ENCODING_TEXT))
    print(f"{key} went to {', '.join(queues)}")

for queue in (billing, audit):
    print(queue.name, "got", [message.body for message in queue.receive_many(10, timeout=0)])
