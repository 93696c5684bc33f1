"""The embedded library."""
