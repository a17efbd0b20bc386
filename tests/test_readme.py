"""The README is true: its code runs, and its numbers are the stored ones."""

import pathlib
import re

import jax

README = (pathlib.Path(__file__).resolve().parents[1] / "README.md").read_text()


def test_every_code_block_runs_in_order(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(blocks) >= 3
    namespace = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)
    # theta = 0.7 made the data and the prior is N(0, .2^2): after 1000 observations the posterior is near 0.65
    assert 0.4 < float(namespace["results"].theta.mean["theta"][-1]) < 0.9
    assert namespace["results"].theta.quantiles["theta"].shape == (1000, 5)


def test_the_accuracy_table_is_the_stored_one():
    from benchmarks.readme import written

    assert written(README) == README


def test_every_public_name_exists_and_has_a_docstring():
    import epf_jax as epf

    for name in epf.__all__:
        assert getattr(epf, name).__doc__ or name == "__version__", name


def test_importing_the_library_changes_no_configuration():
    before = dict(jax.config.values)
    import epf_jax  # noqa: F401

    assert dict(jax.config.values) == before
