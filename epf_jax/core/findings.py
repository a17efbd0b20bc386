"""What may be wrong with an answer, how much that changes it, and what to do: `Finding` and `Diagnosis`."""

import warnings
from collections.abc import Iterable
from typing import NamedTuple

HARMLESS, WRONG = 0.25, 1.0  # posterior standard deviations: below the one, and from the other on


class Finding(NamedTuple):
    """One thing that is wrong, or may be wrong.

    Attributes:
        kind: what it is about: "answer", "zero weights", "weights", "moves of theta", "density of theta", "particles",
            "box", "expansion", "nodes", "descent" or "prediction"; for chains, "zero weights" or "mixing".
        where: the time index of the observation, or the name of the parameter, or both; of chains, which.
        message: what was seen.
        advice: what to do.
        effect: by how many posterior standard deviations the answer is off; NaN where that is not known.
    """

    kind: str
    where: str
    message: str
    advice: str
    effect: float = float("nan")

    @property
    def grade(self) -> str:
        """One of "harmless", "look again" and "wrong", by the effect; what is not known is to be looked at again."""
        return "harmless" if self.effect < HARMLESS else "wrong" if self.effect >= WRONG else "look again"

    def __str__(self) -> str:
        size = f" ({self.effect:.2g} sd)" if self.effect < float("inf") else ""
        return f"{self.grade}{size}: {self.kind}, {self.where}: {self.message}\n    {self.advice}"


class Diagnosis(tuple[Finding, ...]):
    """The findings of a run, the worst first; empty where nothing was found. `measured` says how that is known."""

    measured: str

    def __new__(cls, findings: Iterable[Finding], measured: str = "") -> "Diagnosis":
        """A tuple of findings, and how the effects were measured."""
        order = {"wrong": 0, "look again": 1, "harmless": 2}
        self = super().__new__(cls, sorted(findings, key=lambda finding: order[finding.grade]))
        self.measured = measured
        return self

    def __repr__(self) -> str:
        head = f"{len(self)} finding{'s' if len(self) != 1 else ''}." if self else "Nothing found."
        return "\n".join([f"{head} {self.measured}".rstrip(), *(f"- {finding}" for finding in self)])


def warn_of(findings: Iterable[Finding], stacklevel: int) -> None:
    """Warn of findings in their own words, but for harmless ones."""
    for each in findings:
        if each.grade != "harmless":
            warnings.warn(f"{each.message} {each.advice}", RuntimeWarning, stacklevel=stacklevel + 1)
