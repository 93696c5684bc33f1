"""How fast OpenQ is, each figure as a ratio to something everybody has: see docs/BENCHMARKS.md."""
