"""AMQP 0.9.1 as RabbitMQ speaks it, over the same queues as every other protocol."""
