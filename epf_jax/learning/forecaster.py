"""`learn` behind the methods that forecasting libraries share: fit, update, predict, and the interval of a prediction.

The conventions are those of scikit-learn and of sktime, neither of which is needed. Tables and columns of pandas and
polars go in, and predictions come back in kind.
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from epf_jax.core.checks import check_whole_number
from epf_jax.data.series import Series
from epf_jax.data.tables import is_table
from epf_jax.learning.learn import learn
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.running.export import library
from epf_jax.running.forecast import Forecast, forecast

_PARAMETERS = ("model", "seconds", "seed")


class Forecaster:
    """A model that is fitted to a series and predicts what comes next, by `epf.learn`.

    Args:
        model: a model, or a function that makes one of y, such as `epf.models.structural`.
        seconds: the most to spend on `fit`, and on each `update`.
        seed: of all random numbers.

    After `fit`, `learned_` is what `epf.learn` gave.
    """

    def __init__(self, model: StateSpaceModel | Callable[[Any], StateSpaceModel], *, seconds: float = 60.0, seed=0):
        self.model = model
        self.seconds = seconds
        self.seed = seed

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments that it was made with."""
        return {name: getattr(self, name) for name in _PARAMETERS}

    def set_params(self, **params: Any) -> "Forecaster":
        """Change arguments; the next `fit` uses them."""
        for name, value in params.items():
            if name not in _PARAMETERS:
                raise ValueError(f"{name}: a Forecaster has no such argument. It has {', '.join(_PARAMETERS)}.")
            setattr(self, name, value)
        return self

    def fit(self, y: Any, X: Any = None, fh: Any = None) -> "Forecaster":
        """Learn the model's parameters from a series.

        Args:
            y: the observations: an array, or a column or table of pandas or polars; NaN is missing.
            X: the model's inputs, a row for each observation.
            fh: the steps ahead that `predict` will be asked for, 1 for the next; it may be given there instead.
        """
        model = self.model if isinstance(self.model, StateSpaceModel) else self.model(_values(y))
        self.learned_ = learn(self._key(), model, _values(y), inputs=X, seconds=self.seconds)
        self._like, self._fh = y, fh
        return self

    def update(self, y: Any, X: Any = None) -> "Forecaster":
        """Learn from observations that came after those of `fit`."""
        self.learned_ = self._fitted().update(self._key(), _values(y), inputs=X, seconds=self.seconds)
        self._like = y
        return self

    def predict(self, fh: Any = None, X: Any = None) -> Any:
        """The means of the observations to come.

        Args:
            fh: the steps ahead, 1 for the next: a number, or several.
            X: the model's inputs of all steps up to the last of them.
        """
        steps, found = self._ahead(fh, X, (0.5,))
        means = np.asarray(found.y.mean, float)[steps - 1]
        names = list(self._like.columns) if means.ndim > 1 and is_table(self._like) else []
        return self._in_kind(means, steps, names)

    def predict_quantiles(self, fh: Any = None, X: Any = None, alpha: Any = (0.05, 0.5, 0.95)) -> Any:
        """Quantiles of the observations to come, a column for each level `alpha`."""
        levels = [float(level) for level in np.atleast_1d(alpha)]
        return self._columns(fh, X, levels, [(self._name(), level) for level in levels])

    def predict_interval(self, fh: Any = None, X: Any = None, coverage: Any = 0.9) -> Any:
        """Central intervals of the observations to come: columns lower and upper for each share `coverage`."""
        shares = [float(share) for share in np.atleast_1d(coverage)]
        levels = [level for share in shares for level in (0.5 - share / 2, 0.5 + share / 2)]
        names = [(self._name(), share, end) for share in shares for end in ("lower", "upper")]
        return self._columns(fh, X, levels, names)

    def _columns(self, fh: Any, X: Any, levels: list[float], names: list[tuple]) -> Any:
        places = np.unique(levels, return_inverse=True)[1]
        steps, found = self._ahead(fh, X, tuple(np.unique(levels).tolist()))
        if found.y.mean.ndim > 1:
            raise ValueError("y: quantiles are of one number a time, and the model observes several. Use epf.forecast.")
        return self._in_kind(np.asarray(found.y.quantiles, float)[steps - 1][:, places], steps, names)

    def _ahead(self, fh: Any, X: Any, levels: tuple[float, ...]) -> tuple[np.ndarray, Forecast]:
        """The steps that are asked for, and the forecast of all steps up to the last."""
        learned, fh = self._fitted(), self._fh if fh is None else fh
        if fh is None:
            raise ValueError("fh: no step is asked for. Give the steps ahead, such as fh=[1, 2, 3], to fit or here.")
        steps = list(fh) if isinstance(fh, Iterable) else [fh]
        for step in steps:
            check_whole_number("fh", step, hint="1 is the next observation.")
        key = jax.random.fold_in(self._key(), len(learned.y))
        found = forecast(key, learned.model, learned.draws, int(max(steps)), inputs=X, levels=levels)
        return np.asarray(steps, int), found

    def _in_kind(self, values: np.ndarray, steps: np.ndarray, names: list) -> Any:
        """The values as the library has them that y came from: pandas with the index that follows, polars, or NumPy."""
        kind = type(self._like).__module__.split(".")[0]
        if kind == "polars":
            polars = library("polars")
            if not names:
                return polars.Series(self._name(), values)
            columns = [name if isinstance(name, str) else "_".join(map(str, name)) for name in names]
            return polars.DataFrame(values, schema=columns)
        if kind != "pandas":
            return values
        pandas, index = library("pandas"), _after(self._like.index, steps)
        if not names:
            return pandas.Series(values, index, name=self._like.name)
        columns = pandas.MultiIndex.from_tuples(names) if isinstance(names[0], tuple) else names
        return pandas.DataFrame(values, index, columns)

    def _name(self) -> str:
        return str(getattr(self._like, "name", None) or "y")

    def _key(self) -> Any:
        return jax.random.key(self.seed)

    def _fitted(self) -> Any:
        if not hasattr(self, "learned_"):
            raise ValueError("Forecaster: it has seen no series. Call fit(y) first.")
        return self.learned_


def _values(y: Any) -> np.ndarray:
    return y.to_numpy() if is_table(y) else np.asarray(y)


def _after(index: Any, steps: np.ndarray) -> Any:
    """Where the steps after a pandas index are."""
    pandas = library("pandas")
    if isinstance(index, pandas.DatetimeIndex):
        past = Series(np.zeros(len(index)), None, ("y",), index.to_numpy())
        return pandas.DatetimeIndex(past.stamps_ahead(int(max(steps)))[steps - 1])
    apart = index[-1] - index[-2] if len(index) > 1 else 1
    return pandas.Index([index[-1] + int(step) * apart for step in steps])
