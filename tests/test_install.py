"""The documented install survives a clone that lies, under its own name, beside the user's script."""

import os
import pathlib
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).parents[1]


def test_a_clone_named_like_the_package_beside_a_script_does_not_hide_it(tmp_path):
    (tmp_path / "epf_jax").symlink_to(ROOT)  # `git clone .../epf_jax`; pip install -e ./epf_jax
    (tmp_path / "script.py").write_text("import importlib.util\nprint(importlib.util.find_spec('epf_jax').origin)\n")
    # What an editable install is by a folder on the path, and not by setuptools' finder, which a clone would come before.
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert options["package-dir"] == {"": "."}
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "epf_jax")}
    run = [sys.executable, tmp_path / "script.py"]
    found = subprocess.run(run, env=environment, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert found.stdout.strip() == str(tmp_path / "epf_jax" / "epf_jax" / "__init__.py")
