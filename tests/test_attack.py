"""The attack on the library's promises finds nothing."""

import pathlib
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_attack_finds_nothing_wrong_and_nothing_lost():
    run = [sys.executable, "-m", "benchmarks.attack", "--seconds", "600"]
    found = subprocess.run(run, cwd=pathlib.Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
