"""The server: HTTP, routing, what all protocols share, and the process itself (`app.py`)."""
