"""`FilterState` and `StepInfo`, which all filters carry and report, and checks of states."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from epf_jax.core.naming import estimates
from epf_jax.data.tables import count_of
from epf_jax.models.parameters import Theta

_BELIEVED = 0.1  # an error of the evidence; a difference of one changes the odds of two models by e


class FilterState(NamedTuple):
    """The state of a filter: N particles along the first axis of x, theta and S.

    Attributes:
        x: states x_t.
        theta: parameters, a pytree with the prior's structure.
        S: statistics of the particles' paths.
        log_weights: normalised.
        log_evidence: log p(y_1:t), estimated.
        t: number of observations so far.
    """

    x: Float[Array, "N *x"]
    theta: Theta
    S: Any
    log_weights: Float[Array, " N"]
    log_evidence: Float[Array, ""]
    t: Int[Array, ""]

    def __repr__(self) -> str:
        """What is known, without the arrays; whole where it holds anything else than numbers."""
        if self.log_weights is None:
            return "<FilterState of a filter that waits for the first row of inputs>"
        if not _are_numbers(self) or np.ndim(self.log_weights) != 1:
            return f"FilterState{tuple(self)}" if not np.ndim(self.log_weights) else f"<FilterState of {_runs(self)}>"
        seen = count_of(int(self.t), "observation")
        lines = [f"<FilterState after {seen}, {_runs(self)}, log-evidence {evidence_in_words(self)}"]
        average = partial(np.average, axis=0, weights=np.exp(np.asarray(self.log_weights, float)))
        mean = jax.tree.map(average, self.theta)
        sd = jax.tree.map(lambda leaf, centre: np.sqrt(average((np.asarray(leaf) - centre) ** 2)), self.theta, mean)
        return "\n".join([*lines, *estimates(mean, sd)]) + ">"


def evidence_in_words(state: FilterState, digits: int = 2) -> str:
    """The log-evidence; or why it is not shown, where the statistic says that it is off by more than a tenth."""
    error = float(getattr(state.S, "log_evidence_error", 0.0))
    if error <= _BELIEVED:
        return f"{float(state.log_evidence):.{digits}f}"
    return f"not shown, because between the nodes it may be off by {error:.2g}: take more, num_nodes=..."


class StepInfo(NamedTuple):
    """The report of one step.

    Attributes:
        ess: effective sample size of the weights before resampling.
        resampled: whether the step resampled.
        ancestors: for each particle, the row of the previous generation that it descends from.
        acceptance: mean acceptance rate of the moves of theta (1 for exact draws, 0 if theta never moves, NaN at steps
            without moves, for filters that move it at some steps or never).
        num_bad_weights: how many weights were NaN or +inf, which count as zero; for inner filters, their share times
            the number of particles.
        num_bad_densities: how often theta's density was NaN in its sampler; theta never moves there.
        collapsed: whether every weight was zero; the particles and their old weights are then kept.
        log_increment: log p(y_t | y_1:t-1), estimated.
        overflowed: whether the observation came after the filter's `max_steps`; theta cannot be moved from there on.
        error: how far the means of theta may be off, in posterior standard deviations of the coordinate that is worst,
            by the disagreement of independent groups of particles; NaN for filters without groups.
    """

    ess: Float[Array, ""]
    resampled: Bool[Array, ""]
    ancestors: Int[Array, " N"]
    acceptance: Float[Array, ""]
    num_bad_weights: Int[Array, ""]
    num_bad_densities: Int[Array, ""]
    collapsed: Bool[Array, ""]
    log_increment: Float[Array, ""]
    overflowed: Bool[Array, ""]
    error: Float[Array, ""] = np.float32(np.nan)  # type: ignore[assignment]  # in every precision: nothing comes of it

    def __repr__(self) -> str:
        """What is reported, without the ancestors; whole where it holds anything else than numbers."""
        told = {name: value for name, value in self._asdict().items() if name != "ancestors"}
        if not _are_numbers(told) or any(np.ndim(value) for value in told.values()):
            return f"StepInfo{tuple(self)}"
        return f"<StepInfo {', '.join(f'{name} {value:.4g}' for name, value in told.items())}>"


def _are_numbers(tree: Any) -> bool:
    """Whether all leaves are concrete arrays, neither traced nor abstract."""
    leaves = jax.tree.leaves(tree, is_leaf=lambda leaf: leaf is None)
    return all(isinstance(leaf, jax.Array | np.ndarray) and not isinstance(leaf, jax.core.Tracer) for leaf in leaves)


def _runs(state: FilterState) -> str:
    *runs, num = np.shape(state.log_weights)
    return f"{runs[0]} runs of {num} particles" if runs else f"{num} particles"


_which: Any = (True, True, True, True, False, False)
PARTICLES = FilterState(*_which)  # which parts of a state have a row for each particle


def strongly_typed(state: FilterState) -> FilterState:
    """The state without weak types, which would make the second step compile again."""
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), state)


def typed_as(before: FilterState, state: FilterState) -> FilterState:
    """The state, strongly typed; raises if a precision changed during the step."""
    state = strongly_typed(state)
    for (path, old), new in zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(state), strict=True):
        old_kind, new_kind = getattr(old, "dtype", None) or jnp.result_type(old), new.dtype
        if old_kind != new_kind:
            raise TypeError(
                f"filter_: state{jax.tree_util.keystr(path)} went into the step as {old_kind} and came out as "
                f"{new_kind}. Set jax_enable_x64 before you build the model and the filter, and use one precision in "
                "the model."
            )
    return state


_CALLS = "step(key, state, y, u), epf.run(key, filter, y, state=state) and epf.save(path, state, filter)"


def check_is_state(state: Any, call: str = _CALLS) -> None:
    """Raise if it is not a filter's state; `call` is the call that it was given to."""
    if not isinstance(state, FilterState):
        came = "an array" if isinstance(state, jax.Array) else type(state).__name__
        hint = f"Give {came.lower()}.final." if came in ("Results", "Chains") else f"The arguments are those of {call}."
        raise TypeError(
            f"state: expected the FilterState of filter.init(key), of the last step, or of results.final, got {came}. "
            f"{hint}"
        )


def check_is_filters_state(state: Any) -> None:
    """Raise if no filter can go on from this state."""
    check_is_state(state)
    if state.S is None:
        raise ValueError(
            "state: these are the draws of Markov chains, from which no filter can go on. Run the filter over the "
            "whole series; epf.forecast works with these draws."
        )


def in_words(shapes: FilterState) -> str:
    """Shapes of a state, which shows itself in fewer words."""
    return ", ".join(f"{name} {shape}" for name, shape in shapes._asdict().items() if shape not in ((), None))
