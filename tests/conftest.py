"""What every test shares: as little as possible."""

from hypothesis import settings

# No deadline per example: a busy machine is not a bug.
settings.register_profile("openq", deadline=None)
settings.load_profile("openq")
