"""Benchmarks, each figure as a ratio to a well-known reference: see docs/BENCHMARKS.md."""
