"""The parts of an experiment's report: sections with figures and tables, and claims with verdicts."""

from collections.abc import Callable
from typing import NamedTuple

from epf_jax.apps.page import Figure, Table
from epf_jax.apps.reproduce.cases import Size
from epf_jax.apps.reproduce.store import Stored, Unit


class Claim(NamedTuple):
    """A claim of the paper, and the verdict of this run.

    Attributes:
        where: the place in the paper.
        says: what the paper says.
        verdict: "reproduces", "reproduces only with ..." or "does not reproduce, because ...".
        evidence: the numbers of this run behind the verdict.
    """

    where: str
    says: str
    verdict: str
    evidence: str

    @property
    def kind(self) -> str:
        """One of "yes", "partly" and "no"."""
        return "no" if self.verdict.startswith("does not") else "partly" if "only with" in self.verdict else "yes"


def verdict(holds: bool, *, only_with: str = "", because: str = "") -> str:
    """The verdict in words, computed from what was found."""
    if not holds:
        return f"does not reproduce, because {because}"
    return f"reproduces only with {only_with}" if only_with else "reproduces"


class Findings(NamedTuple):
    """One experiment in the report.

    Attributes:
        text: paragraphs of prose.
        settings: rows of (what, the paper's, ours).
    """

    text: list[str]
    settings: list[tuple[str, str, str]]
    figures: list[Figure]
    tables: list[Table]
    claims: list[Claim]


class Experiment(NamedTuple):
    """A part of the paper.

    Attributes:
        name: as on the command line.
        title: as in the report.
        units: `units(size)`, the work to do.
        present: `present(size, results)`, the section of the report from the units' results by name.
    """

    name: str
    title: str
    units: Callable[[Size], list[Unit]]
    present: Callable[[Size, dict[str, Stored]], Findings]
