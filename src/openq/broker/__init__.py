"""Engine and journal joined behind a few verbs."""
