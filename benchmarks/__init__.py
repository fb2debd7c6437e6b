"""Measures what the project promises: `python -m benchmarks.run`."""
