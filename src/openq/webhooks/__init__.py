"""Webhooks: messages of a queue, or events, sent to a URL. `service.py` has the overview."""
