"""The WebSocket stream: messages are pushed to subscriptions, settled and published on one socket."""
