"""Benchmarks: accuracy against exact posteriors, speed, and what the README quotes of them."""
