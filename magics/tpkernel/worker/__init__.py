"""Kernels in a process of their own, and what is told of those that crash."""
