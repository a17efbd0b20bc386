"""The list of mutants: it applies, is long enough, and what applies is killed by the quick tests."""

import mutants
import pytest


def test_every_mutant_applies_to_the_library_as_it_is():
    assert len({mutant.name for mutant in mutants.MUTANTS}) == len(mutants.MUTANTS) >= 60
    wrong = []
    for mutant in mutants.MUTANTS:
        try:
            mutant.applied((mutants.ROOT / "epf_jax" / mutant.path).read_text())
        except (ValueError, OSError) as error:
            wrong.append(str(error))
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_the_quick_tests_kill_a_mutant(mutant, copy):
    assert mutants.fate(mutant, copy) == "killed"


@pytest.fixture(scope="session")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    mutants.copy_of_library(folder)
    return folder
