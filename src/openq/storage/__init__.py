"""The bytes on disk."""
