"""Models that people write, the right answers for each, and what the front door makes of them."""
