"""What the library achieves and how fast, measured on real data: `python -m benchmarks`."""
