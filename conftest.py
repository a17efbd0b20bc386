"""Shared set-up: compiled programs are cached between runs, and every fixture says which precision it uses."""

import pathlib

import jax
import pytest

import epf_jax.core.gammas
from epf_jax.core.machine import share_of_maps

ROOT = pathlib.Path(__file__).resolve().parent
jax.config.update("jax_compilation_cache_dir", str(ROOT / ".jax_cache"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # workers share the small ones, too
jax.config.update("jax_persistent_cache_enable_xla_caches", "none")  # or programs are known in this folder alone


@pytest.fixture
def x64():
    """float64 for one test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=["float32", "float64"])
def precision(request):
    """Each test in float32 and in float64."""
    with jax.enable_x64(request.param == "float64"):
        yield request.param


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """To be called: gamma draws are traced from then on as they are for a GPU, until the test ends."""

    def switch():
        jax.clear_caches()
        monkeypatch.setattr(epf_jax.core.gammas, "by_platform", lambda *given, default, **ways: default(*given))

    yield switch
    jax.clear_caches()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown():
    """Some hundreds of filters are more than a process can hold; those forgotten are read again from the disk."""
    if share_of_maps() > 0.5:
        jax.clear_caches()


def pytest_collection_modifyitems(items):
    """Tests for an accelerator are skipped where there is none."""
    if jax.default_backend() != "cpu":
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs an accelerator, and jax finds only the CPU"))
