"""RabbitMQ's management HTTP API."""
