"""The doors: what clients speak, translated to the verbs of the broker and back."""
