"""Benchmarks: accuracy against exact posteriors, speed, and the tables that the pages quote of them."""
