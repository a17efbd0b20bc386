r"""The logarithm and the normal distribution function in plain arithmetic, which compilers turn into quick loops.

On a CPU XLA's own logarithm is a call to a function. The polynomials here are Chebyshev interpolants, computed from
Python's own functions where they are first needed.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from epf_jax.core.choice import where


class _Precision(NamedTuple):
    """How a number is laid out in bits, and how far the polynomials go.

    Attributes:
        whole: integers of the same size.
        digits: bits of the mantissa.
        log_degree: of the logarithm's polynomial; it is right to 4 units of float32 and 16 of float64
            (`tests/core/test_elementary.py`).
        ndtr_degree: of the polynomial in `log_ndtr`.
    """

    whole: type
    digits: int
    log_degree: int
    ndtr_degree: int


_PRECISIONS = {
    "float32": _Precision(np.int32, 23, 8, 10),
    "float64": _Precision(np.int64, 52, 18, 20),
}


_TURN = 2.5  # the k of `log_ndtr`
_NEWTON_STEPS = 5  # from an error of .4 at most: .06, 2e-3, 1e-6, 1e-12, nothing


@jax.custom_jvp
def log(x: Array) -> Array:
    r"""The logarithm of a positive number :math:`x = 2^e (1 + f)`, :math:`e \log 2 + f P(f)`; +inf and NaN stay.

    LLVM unrolls a loop of calls over few numbers, and then computes one logarithm at a time. It keeps plain arithmetic
    as a loop.
    """
    return where(x < jnp.inf, _log(x), x)


log.defjvps(lambda tangent, _, x: tangent / x)


def _log(x: Array) -> Array:
    whole, digits, *_ = _PRECISIONS[x.dtype.name]
    half = np.sqrt(0.5).astype(x.dtype).view(whole)  # 1 + f is from sqrt(1/2) to sqrt(2)
    bits = jax.lax.bitcast_convert_type(x, whole)
    e = (bits - half) >> digits
    f = jax.lax.bitcast_convert_type(bits - (e << digits), x.dtype) - 1.0
    return e.astype(x.dtype) * math.log(2.0) + f * _at(_log_series(x.dtype.name), f)


@jax.custom_jvp
def log_ndtr(x: Array) -> Array:
    r"""The logarithm of the normal distribution function, far into its lower tail.

    .. math:: \log \Phi(-\sqrt2 z) = -z^2 + \log \frac{P(t)}{2 (1 + 2z)}, \qquad t = 1 - \frac{2k}{z + k}, \; z \ge 0

    with a polynomial P through :math:`(1 + 2z)\,\mathrm{erfcx}(z)` (Shepherd and Laframboise 1981).
    """
    z = jnp.abs(x) * math.sqrt(0.5)
    ratio = _at(_erfcx_series(x.dtype.name), 1.0 - 2.0 * _TURN / (z + _TURN)) / (2.0 + 4.0 * z)
    return where(x > 0, jnp.log1p(-ratio * jnp.exp(-z * z)), _log(ratio) - z * z)


@log_ndtr.defjvp
def _log_ndtr_jvp(primals, tangents):
    (x,), (tangent,) = primals, tangents
    log_p = log_ndtr(x)
    log_slope = -0.5 * (x * x + math.log(2.0 * math.pi)) - log_p
    return log_p, tangent * where(jnp.isfinite(x), jnp.exp(log_slope), 0.0)


def normal_quantile_of_log(log_p: Array) -> Array:
    r"""The x at which :math:`\log\Phi(x)` is `log_p`.

    In the lower tail, or mirrored, by Newton's steps, which never pass x from below: the logarithm is concave. They
    start there, as :math:`\Phi(x) \le \tfrac12 e^{-x^2/2}`; the error of each is at most .4 times the square of the
    last.
    """
    upper = log_p > -math.log(2.0)
    rest = jnp.maximum(-jnp.expm1(where(upper, log_p, -1.0)), jnp.finfo(log_p.dtype).tiny)
    target = where(upper, jnp.log(rest), log_p)

    def newton(_, x):
        log_phi = log_ndtr(x)
        return x - (log_phi - target) * jnp.exp(0.5 * (x * x + math.log(2.0 * math.pi)) + log_phi)

    below = jax.lax.stop_gradient(target) + math.log(2.0)
    x = jax.lax.fori_loop(0, _NEWTON_STEPS, newton, -jnp.sqrt(-2.0 * jnp.minimum(below, 0.0)))
    return where(upper, -x, x)


class _Series(NamedTuple):
    """A polynomial about a centre, lowest power first."""

    centre: float
    coefficients: tuple[float, ...]


@cache
def _log_series(dtype: str) -> _Series:
    low, high = math.sqrt(0.5) - 1.0, math.sqrt(2.0) - 1.0
    return _interpolant(lambda f: math.log1p(f) / f, low, high, _PRECISIONS[dtype].log_degree)


@cache
def _erfcx_series(dtype: str) -> _Series:
    from scipy.special import erfcx  # it takes a while to import

    def ratio(t):
        z = _TURN * (1.0 + t) / (1.0 - t)
        return (1.0 + 2.0 * z) * float(erfcx(z)) if z < 1e9 else 2.0 / math.sqrt(math.pi)

    return _interpolant(ratio, -1.0, 1.0 - 1e-12, _PRECISIONS[dtype].ndtr_degree)


def _interpolant(function: Callable[[float], float], low: float, high: float, degree: int) -> _Series:
    """The polynomial through the function at the Chebyshev points between low and high."""
    centre, half = (low + high) / 2.0, (high - low) / 2.0
    found = np.polynomial.chebyshev.chebinterpolate(np.vectorize(lambda s: function(centre + half * s)), degree)
    powers = np.polynomial.chebyshev.cheb2poly(found) / half ** np.arange(degree + 1)
    return _Series(centre, tuple(powers))


def _at(series: _Series, x: Array) -> Array:
    """Evaluate by Estrin's scheme: pairs at once, then pairs of pairs, so that no term waits for all before it."""
    x = x - series.centre
    terms = [jnp.asarray(c, x.dtype) for c in series.coefficients]
    while len(terms) > 1:
        pairs = [a + b * x for a, b in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[2 * len(pairs) :]
        x = x * x
    return terms[0]
