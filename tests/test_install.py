"""The packages say of themselves what the repository says, and a clone beside the user's script does not hide them."""

import os
import pathlib
import re
import subprocess
import sys
import tomllib

from epf_jax import __version__

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_a_clone_named_like_the_package_beside_a_script_does_not_hide_it(tmp_path):
    (tmp_path / "epf_jax").symlink_to(ROOT)  # `git clone .../epf_jax`; pip install -e ./epf_jax
    (tmp_path / "script.py").write_text("import importlib.util\nprint(importlib.util.find_spec('epf_jax').origin)\n")
    # What an editable install is by a folder on the path, and not by setuptools' finder, which a clone would come before.
    assert PROJECT["tool"]["setuptools"]["package-dir"] == {"": "."}
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "epf_jax")}
    run = [sys.executable, tmp_path / "script.py"]
    found = subprocess.run(run, env=environment, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert found.stdout.strip() == str(tmp_path / "epf_jax" / "epf_jax" / "__init__.py")


def test_citation_recipe_and_changelog_tell_the_version_of_the_library():
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n  version: {__version__}\n" in (ROOT / "conda" / "recipe.yaml").read_text()
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == __version__


def test_the_conda_recipe_asks_for_what_the_wheel_asks_for():
    run = (ROOT / "conda" / "recipe.yaml").read_text().split("  run:\n")[1].split("\n\n")[0]
    listed = {row.strip("- ").replace(" ", "") for row in run.splitlines()}
    project = PROJECT["project"]
    assert listed == {*project["dependencies"], f"python{project['requires-python']}"}


def test_every_address_in_the_metadata_is_of_one_repository():
    for address in PROJECT["project"]["urls"].values():
        assert re.match(r"https://(github\.com/epf-jax|epf-jax\.github\.io)/epf_jax(/|$)", address), address
