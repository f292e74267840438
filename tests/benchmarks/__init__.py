"""Benchmarks: ratios between ways of doing one thing, measured in one run on one machine."""
