"""Messages as documents: how REST, the WebSocket stream and other HTTP protocols show and read them."""
