"""The README and the pages of docs/ are true: their code runs, errors are as shown, numbers are the stored ones."""

import jax
import pytest
from pages import ROOT, run_page

README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_code_block_runs_in_order(slow, capsys):
    namespace, num_blocks = run_page("README.md", slow=slow)
    assert num_blocks >= 3
    # theta = 0.7 made the data and the prior is N(0, .2^2): after 1000 observations the posterior is near 0.65
    assert 0.4 < float(namespace["results"].theta.mean["theta"][-1]) < 0.9
    assert namespace["results"].theta.quantiles["theta"].shape == (1000, 5)


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_every_code_block_of_a_page_runs_and_every_error_is_the_one_shown(page, capsys):
    _, num_blocks = run_page(f"docs/{page}")
    assert num_blocks >= 1


def test_the_page_on_models_shows_ten_mistakes():
    page = (ROOT / "docs" / "writing_a_model.md").read_text()
    assert page.count("```python raises") == page.count("```text") == 10
    assert [f"### {i}. " in page for i in range(1, 11)] == [True] * 10


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
