"""What `print` shows of what was learned: the table of the parameters, the verdict, what was done."""

from typing import Any

import jax
import numpy as np

from epf_jax.core.naming import scalars


def at_level(learned: Any, level: float) -> dict[str, np.ndarray]:
    """The quantiles at a level, by the names of theta's numbers."""
    i = int(np.argmin(np.abs(learned.levels - level)))
    return scalars(jax.tree.map(lambda leaf: leaf[..., i], learned.theta.quantiles))


def table_of(learned: Any) -> list[str]:
    """A line for every number of theta."""
    parts = [scalars(part) for part in (learned.theta.mean, learned.theta.sd, learned.error)]
    levels = [at_level(learned, level) for level in (0.05, 0.5, 0.95)]
    columns = [*parts[:2], *levels, parts[2]]
    names = list(parts[0])
    width = max([len(name) for name in names] + [9])
    head = f"{'':{width}}" + "".join(f"{title:>10}" for title in ("mean", "sd", "5%", "50%", "95%", "error"))
    rows = [
        f"{name:{width}}"
        + "".join(f"{float(column[name]):>10.4g}" for column in columns[:-1])
        + f"{float(columns[-1][name]):>10.2g}"
        for name in names
    ]
    return [head, *rows]


def sentence_of(learned: Any) -> str:
    """Whether to trust it all."""
    worst = max([float(error) for error in scalars(learned.error).values()], default=0.0)
    if learned.trusted:
        return f"Trusted: the means are within about {worst:.2g} posterior sds (column `error`)."
    sds = max([float(error) for error in scalars(learned.sd_error).values()], default=0.0)
    return (
        f"NOT trusted: the means may be off by {worst:.2g} posterior sds or more (column `error`), and the sds by "
        f"{sds:.0%}."
    )


def verdict_of(learned: Any) -> list[str]:
    """The evidence, whether to trust it all, and what was done."""
    lines = [
        f"log-evidence {learned.log_evidence:.2f} +- {learned.log_evidence_error:.2g}",
        sentence_of(learned),
        f"By {learned.method}: {learned.why}. {learned.seconds:.1f} s.",
    ]
    lines += [f"  {attempt.method}: {attempt.outcome}" for attempt in learned.attempts]
    return lines + list(learned.notes)
