"""The queue semantics: pure, no I/O, clock, threads or randomness."""
