"""Our own API: everything a queue can do, over HTTP, as JSON or msgpack."""
