"""The README and the pages of docs/ are true: their code runs, errors are as shown, numbers are the stored ones."""

import re

import jax
import pytest
from pages import ROOT, run_page

DOCS = sorted((ROOT / "docs").glob("*.md"))
WITH_CODE = [path.name for path in DOCS if "```python" in path.read_text()]
REPOSITORY = "https://github.com/epf-jax/epf_jax/blob/main/"  # the README is also read on a package index
SLOW = [False, pytest.param(True, marks=pytest.mark.slow)]


@pytest.mark.parametrize("slow", SLOW)
def test_every_code_block_runs_in_order(slow, capsys):
    namespace, num_blocks = run_page("README.md", slow=slow)
    assert num_blocks >= 2
    # theta = 0.7 made the data and the prior is N(0, .2^2): after 1000 observations the posterior is near 0.65
    assert 0.4 < float(namespace["results"].theta.mean["theta"][-1]) < 0.9
    assert namespace["results"].theta.quantiles["theta"].shape == (1000, 5)


@pytest.mark.slow
@pytest.mark.parametrize("slow", SLOW)
@pytest.mark.parametrize("page", WITH_CODE)
def test_every_code_block_of_a_page_runs_and_every_error_is_the_one_shown(page, slow, capsys):
    _, num_blocks = run_page(f"docs/{page}", slow=slow)
    assert num_blocks >= 1


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= 1000
    assert len((ROOT / "CONTRIBUTING.md").read_text().split()) <= 1000


def test_the_page_on_models_numbers_its_mistakes():
    page = (ROOT / "docs" / "writing_a_model.md").read_text()
    num = page.count("```python raises")
    assert num == page.count("```text") >= 10
    assert [f"### {i}. " in page for i in range(1, num + 1)] == [True] * num


def test_the_page_on_results_has_a_row_for_every_kind_of_finding():
    page = (ROOT / "docs" / "results.md").read_text()
    table = page.split("| finding | it means |")[1].split("\n\n")[0]
    listed = {
        kind for row in table.splitlines() if row.startswith("| ") for kind in row.split("|")[1].strip().split(", ")
    }
    files = [
        ROOT / "epf_jax" / name
        for name in ("running/diagnosis.py", "running/alarms.py", "running/causes.py", "offline/mixing.py")
    ]
    kinds = {kind for file in files for kind in re.findall(r'Finding\(\s*"([^"]+)"', file.read_text())}
    assert kinds == listed


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS], ids=lambda path: path.name)
def test_every_link_leads_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        link = link.removeprefix(REPOSITORY)
        if not link.startswith("https://"):
            file, _, heading = link.partition("#")
            there = page.parent / file if file else page
            assert there.exists(), link
            assert not heading or heading in _headings(there.read_text()), link


def test_the_readme_links_nothing_that_a_package_index_does_not_have():
    links = re.findall(r"\]\(([^)\s]+)\)", (ROOT / "README.md").read_text())
    assert [link for link in links if not link.startswith("https://")] == []


def _headings(text):
    """The anchors that GitHub makes of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_public_name_exists_and_has_a_docstring():
    import epf_jax as epf

    for name in epf.__all__:
        assert getattr(epf, name).__doc__ or name == "__version__", name


def test_importing_the_library_changes_no_configuration():
    before = dict(jax.config.values)
    import epf_jax  # noqa: F401

    assert dict(jax.config.values) == before
