"""The durable log on disk."""
