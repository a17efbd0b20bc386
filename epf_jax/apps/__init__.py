"""What a shell runs: the command `epf`, the demo, the reproduction of the paper, report pages."""
