"""What may be wrong with results, and what to try: the words of `results.diagnose()`."""

from typing import NamedTuple


class Finding(NamedTuple):
    """One thing that is wrong, or may be wrong.

    Attributes:
        kind: one of "zero weights", "weights", "moves of theta", "density of theta", "descent", "box", "expansion",
            "nodes" or "prediction"; for chains, "zero weights" or "mixing".
        where: the time index of the observation, or the name of the parameter, or both; of chains, which.
        message: what was seen.
        advice: what to try.
    """

    kind: str
    where: str
    message: str
    advice: str

    def __str__(self) -> str:
        return f"{self.kind} ({self.where}): {self.message}\n    Try: {self.advice}"


class Diagnosis(tuple[Finding, ...]):
    """The findings of a run, most basic first; empty where nothing was found. `unseen` says what was not recorded."""

    unseen: tuple[str, ...]

    def __new__(cls, findings: list[Finding], unseen: tuple[str, ...] = ()) -> "Diagnosis":
        """A tuple of findings, and what could not be looked at."""
        self = super().__new__(cls, findings)
        self.unseen = unseen
        return self

    def __repr__(self) -> str:
        head = f"{len(self)} finding{'s' if len(self) != 1 else ''}" if self else "Nothing found."
        lines = [head, *(f"- {finding}" for finding in self)]
        if self.unseen:
            lines.append(f"Not looked at: {', '.join(self.unseen)}; epf.run(..., diagnostics=True) records them.")
        return "\n".join(lines)
