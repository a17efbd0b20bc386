"""Programs for the shell: the command `epf`, the demo, the reproduction of the paper, report pages."""
