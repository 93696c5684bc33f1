"""The broker interface, and the code that both stores share."""
