"""What `epf fit` found, by `learn` or by a named method: one noun for the screen, the page and the files."""

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from epf_jax.apps.commands.options import in_options, written
from epf_jax.apps.page import Table
from epf_jax.core.naming import LEVELS, scalars
from epf_jax.data.tables import count_of
from epf_jax.filters import Filter, FilterState
from epf_jax.filters.state import evidence_in_words
from epf_jax.learning import Learned, learn
from epf_jax.learning.learned_table import sentence_of
from epf_jax.models.observed import Observed
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.running.records import Summary
from epf_jax.running.results import Results
from epf_jax.running.run import warn_of_no_estimate


class Answer(NamedTuple):
    """The posterior after the last observation, and what to think of it.

    Attributes:
        model: the model.
        state: weighted draws of theta and of the last state.
        theta: their summary.
        levels: the levels of its quantiles.
        error: how far each mean may be off, or None if the method does not say.
        verdict: sentences; the first is the most important.
        is_good: whether nothing was found that speaks against it.
        facts: tables and sentences on how it was found.
    """

    model: StateSpaceModel
    state: FilterState
    theta: Summary
    levels: Any
    error: Any
    verdict: list[str]
    is_good: bool
    facts: list[Any]

    def rows(self) -> list[dict[str, Any]]:
        """A row for every number of theta."""
        levels = np.asarray(self.levels)
        parts: dict[str, Any] = {"mean": scalars(self.theta.mean), "sd": scalars(self.theta.sd)}
        for level in LEVELS.values():
            i = int(np.argmin(np.abs(levels - level)))
            parts[f"{level:.0%}"] = scalars(jax.tree.map(lambda leaf, i=i: leaf[..., i], self.theta.quantiles))
        if self.error is not None:
            parts["error"] = scalars(self.error)
        return [{"parameter": name, **{p: float(parts[p][name]) for p in parts}} for name in parts["mean"]]

    def table(self, title: str = "") -> Table:
        """The rows, rounded."""
        rows = [
            {k: v if k == "parameter" else written(v, 2 if k == "error" else 4) for k, v in row.items()}
            for row in self.rows()
        ]
        note = "" if self.error is None else "error: how far the mean may be off, in posterior standard deviations."
        return Table(title, rows, note)


def by_learning(key: Any, model: StateSpaceModel, series: Observed, seconds: float) -> tuple[Answer, Learned]:
    """The answer of `epf.learn`."""
    told: list[str] = []
    with told_of(told):
        learned = learn(key, model, series, seconds=seconds, progress=sys.stderr.isatty())
    attempts = [{"tried": attempt.method, "outcome": attempt.outcome} for attempt in learned.attempts]
    facts = [
        f"By {learned.method}: {learned.why}. {learned.seconds:.1f} s.",
        f"log-evidence {learned.log_evidence:.3f} +- {learned.log_evidence_error:.2g}.",
        Table("", attempts),
    ]
    verdict = [in_options(sentence) for sentence in (sentence_of(learned), *learned.notes, *told)]
    answer = Answer(
        learned.model, learned.draws, learned.theta, learned.levels, learned.error, verdict, learned.trusted, facts
    )
    return answer, learned


def by_filter(filter_: Filter, results: Results, seconds: float) -> Answer:
    """The answer of a filter's run, and how far it is off by fresh likelihoods, which take at most so many seconds."""
    theta = jax.tree.map(lambda leaf: np.asarray(leaf)[-1], results.theta)
    told: list[str] = []
    with told_of(told):
        warn_of_no_estimate(filter_, 0, results.final.t)
        found = results.diagnose(seconds=seconds)
    is_good = not told and all(each.grade == "harmless" for each in found)
    verdict = [f"Nothing found. {found.measured}"] if is_good else []
    verdict += told + [f"{each.message} {each.advice}" for each in found]
    facts = [f"By a {repr(filter_).strip('<>')}.", run_facts(results)]
    verdict = [in_options(sentence) for sentence in verdict]
    return Answer(filter_.model, results.final, theta, results.levels, None, verdict, is_good, facts)


def off_by(results: Results, answer: Answer) -> dict[str, float]:
    """How far a method's means are from `learn`'s, in posterior standard deviations."""
    (mean, sd), means = map(scalars, answer.theta[:2]), scalars(results.theta.mean, 1)
    return {name: float((means[name][-1] - mean[name]) / sd[name]) for name in mean if name in means}


def run_facts(results: Results) -> Table:
    """The evidence and the quality of the particles."""
    ess = np.asarray(results.ess)
    tried = np.asarray(results.acceptance)[~np.isnan(results.acceptance)]
    after = count_of(int(results.final.t), "observation")
    rows: list[dict[str, Any]] = [
        {"": f"log-evidence after {after}", "value": evidence_in_words(results.final, 3)},
        {"": "effective sample size, median", "value": written(np.median(ess))},
        {"": "effective sample size, smallest", "value": f"{written(ess.min())} (at t = {int(np.argmin(ess)) + 1})"},
        {"": "acceptance of theta's moves, mean", "value": written(tried.mean() if len(tried) else np.nan)},
        {"": "steps that gave every particle zero weight", "value": int(np.sum(results.collapsed))},
    ]
    return Table("The run", rows)


@contextlib.contextmanager
def told_of(sentences: list[str]) -> Iterator[None]:
    """Adds what is warned of meanwhile to these sentences."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        yield
    sentences += [in_options(str(w.message)) for w in caught if w.category is RuntimeWarning]
    for other in (w for w in caught if w.category is not RuntimeWarning):
        warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
