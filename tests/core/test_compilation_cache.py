"""The persistent cache of compiled programs is JAX's own: the folder is made, filled, and used by another process."""

import os
import subprocess
import sys

import jax
import pytest

import epf_jax as epf


@pytest.fixture
def folder(tmp_path):
    """A folder where programs are kept for one test."""
    options = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in options}
    jax.config.update(options[1], 1.0)  # jax's own
    yield epf.cache_compiled_programs(tmp_path / "kept")
    for name, value in before.items():
        jax.config.update(name, value)


def test_the_folder_is_made_and_told_to_jax(folder):
    assert folder.is_dir()
    assert jax.config.jax_compilation_cache_dir == str(folder)
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 0.0


def test_a_folder_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for folder, error in ((3, TypeError), (tmp_path / "file", OSError), ("/proc/nope", OSError)):
        with pytest.raises(error):
            epf.cache_compiled_programs(folder)


@pytest.mark.slow
def test_another_process_finds_the_programs_of_the_first(tmp_path):
    code = f"""if True:
        import jax, numpy as np, numpyro.distributions as dist
        import epf_jax as epf
        epf.cache_compiled_programs({str(tmp_path)!r})
        model = epf.StateSpaceModel(
            prior={{"a": dist.Normal(0.0, 1.0)}},
            initial=lambda theta: dist.Normal(0.0, 1.0),
            transition=lambda theta, x, u: dist.Normal(theta["a"] * x, 1.0),
            observation=lambda theta, x, u: dist.Normal(x, 0.5),
        )
        results = epf.run(jax.random.key(1), epf.bootstrap_filter(model, 8), np.linspace(-1.0, 1.0, 6))
        print(results.log_evidence.tobytes().hex())"""

    def told():
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=os.environ, capture_output=True, check=True, text=True).stdout

    first, kept = told(), sorted(path.name for path in tmp_path.glob("*-cache"))
    again = told()
    assert any(name.startswith("jit_run_jitted") for name in kept)
    assert sorted(path.name for path in tmp_path.glob("*-cache")) == kept  # the second compiled nothing anew
    assert again == first
