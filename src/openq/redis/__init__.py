"""The second engine: queues that live in Redis or Valkey, shared by every process that has the URL."""
