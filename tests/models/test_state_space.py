"""Models: simulation, inputs and the time index, missing observations, one draw for each particle."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions.batch_util import promote_batch_shape
from scipy import stats

import epf_jax as epf
from epf_jax.core.densities import can_be_partly_missing, observed_log_prob, sample_each
from epf_jax.core.gammas import with_own_gammas
from epf_jax.core.random import stream
from epf_jax.models.state_space import known

TINY = 1e-3  # noise that tells nothing: paths are what the means say, to a few thousandths


def counter(mean, seen, **options):
    """A model of almost no noise: x_0 = 100, x_t = mean(x_{t-1}, u), y_t = seen(x_t, u)."""
    return epf.StateSpaceModel(
        prior={"a": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(100.0, TINY),
        transition=lambda theta, x, u: dist.Normal(mean(x, u), TINY),
        observation=lambda theta, x, u: dist.Normal(seen(x, u), TINY),
        **options,
    )


# ------------------------------------------------------------------------------------------------- simulation, inputs


def test_a_simulated_path_starts_at_x_0_and_y_1_is_of_x_1():
    x, y = epf.simulate(jax.random.key(0), counter(lambda x, u: x + 1.0, lambda x, u: -x), {"a": 0.0}, 4)
    # Five errors of sd 0.001 add up to less than 0.01 at four standard deviations.
    np.testing.assert_allclose(x, [100.0, 101.0, 102.0, 103.0, 104.0], atol=0.01)
    np.testing.assert_allclose(y, [-101.0, -102.0, -103.0, -104.0], atol=0.01)


def test_without_inputs_u_is_the_time_index_from_one_on():
    x, y = epf.simulate(jax.random.key(0), counter(lambda x, u: 1.0 * u, lambda x, u: 10.0 * u), {"a": 0.0}, 3)
    np.testing.assert_allclose(x[1:], [1.0, 2.0, 3.0], atol=0.01)
    np.testing.assert_allclose(y, [10.0, 20.0, 30.0], atol=0.01)


def test_inputs_are_arrays_or_dicts_of_arrays_one_row_for_each_step():
    rows = jnp.array([[1.0, 5.0], [2.0, 6.0]])
    by_array = counter(lambda x, u: u[0], lambda x, u: x + u[1])
    by_dict = counter(lambda x, u: u["level"], lambda x, u: x + u["shift"])
    for model, inputs in ((by_array, rows), (by_dict, {"level": rows[:, 0], "shift": rows[:, 1]})):
        x, y = epf.simulate(jax.random.key(0), model, {"a": 0.0}, 2, inputs=inputs)
        np.testing.assert_allclose(x, [100.0, 1.0, 2.0], atol=0.01)
        np.testing.assert_allclose(y, [6.0, 8.0], atol=0.01)


def test_vectors_by_event_and_by_batch_have_the_same_shapes():
    for shape_up in (lambda d: d, lambda d: d.to_event(1)):
        model = epf.StateSpaceModel(
            prior=dist.Normal(0.0, 1.0),
            initial=lambda theta, f=shape_up: f(dist.Normal(jnp.zeros(2), 1.0)),
            transition=lambda theta, x, u, f=shape_up: f(dist.Normal(theta * x, 1.0)),
            observation=lambda theta, x, u, f=shape_up: f(dist.Normal(jnp.concatenate([x, x[:1]]), 1.0)),
        )
        assert model.shapes.x.shape == (2,)
        assert model.shapes.y.shape == (3,)
        x, y = epf.simulate(jax.random.key(0), model, 0.5, 4)
        assert (x.shape, y.shape) == ((5, 2), (4, 3))


@pytest.mark.slow
def test_a_time_varying_model_is_the_same_by_time_index_and_by_inputs():
    model = epf.StateSpaceModel(
        prior={"a": dist.Normal(0.5, 0.5)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["a"] * x + jnp.cos(1.2 * u), 1.0),
        observation=lambda theta, x, u: dist.Normal(x, 0.5),
    )
    filter_ = epf.bootstrap_filter(model, 50)
    y = jnp.array([0.2, -0.5, 1.0, 0.3])
    by_index = epf.run(jax.random.key(1), filter_, y, levels=())
    by_inputs = epf.run(jax.random.key(1), filter_, y, inputs=jnp.arange(1, 5), levels=())
    shifted = epf.run(jax.random.key(1), filter_, y, inputs=jnp.arange(2, 6), levels=())
    for a, b in zip(jax.tree.leaves(by_index), jax.tree.leaves(by_inputs), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    assert not np.allclose(by_index.log_evidence, shifted.log_evidence, atol=1e-2)
    half = epf.run(jax.random.key(1), filter_, y[:2], levels=())
    rest = epf.run(jax.random.key(1), filter_, y[2:], state=half.final, levels=())
    np.testing.assert_array_equal(rest.log_evidence, by_index.log_evidence[2:])


def reads_inputs(names="a", **options):
    """x_t = (a + ...) x_{t-1} + u_1 + noise, with vector inputs: it cannot be evaluated on a time index."""
    return epf.StateSpaceModel(
        prior={name: dist.Normal(0.0, 0.5) for name in names},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(sum(theta.values()) * x + u[0], 1.0),
        observation=lambda theta, x, u: dist.Normal(x + u[1], 0.5),
        **options,
    )


def test_a_model_that_has_seen_its_inputs_can_be_inspected():
    blind = reads_inputs()
    seen = blind.for_inputs(jnp.zeros(2))
    assert blind.wants_inputs
    assert not seen.wants_inputs
    assert seen.shapes.y.shape == ()
    assert blind.for_inputs(np.ones(2, np.float32)) is seen  # compiled once
    with pytest.raises(ValueError, match=r"^model: its transition .*for_inputs\(inputs\[0\]\)"):
        _ = blind.shapes


def test_an_example_input_is_no_longer_needed_and_still_taken():
    with pytest.warns(DeprecationWarning, match=r"^example_input: it is no longer needed.*for_inputs") as told:
        model = reads_inputs(example_input=jnp.zeros(2))
    assert [warning.filename for warning in told] == [__file__]
    assert not model.wants_inputs
    assert not dataclasses.replace(model, initial=lambda theta: dist.Normal(0.0, 2.0)).wants_inputs  # and no warning


@pytest.mark.slow
def test_a_filter_of_vector_inputs_and_given_parts_is_right():
    inputs = jnp.array([[0.5, 0.0], [-0.5, 1.0], [1.0, -1.0], [0.0, 0.3]])
    y = jnp.array([0.4, 0.9, -0.2, 0.5])
    blind = reads_inputs()
    parts = {"statistic": epf.chebyshev(blind, 5, shrink=None), "proposal": epf.bootstrap()}
    filter_ = epf.extended_parameter_filter(blind, 500, **parts)
    results = epf.run(jax.random.key(1), filter_, y, inputs=inputs, levels=())
    exact = epf.exact.kalman(blind, y, {"a": np.linspace(-2.5, 2.5, 51)}, inputs=inputs)
    # 4 steps with weights of relative variance about 1 or 2: standard error sqrt(4 * 2 / 500) = 0.13.
    assert abs(float(results.log_evidence[-1]) - exact.log_evidence[-1]) < 4 * 0.13
    assert abs(float(results.theta.mean["a"][-1]) - exact.mean["a"][-1]) < 4 * 0.13 * exact.sd["a"][-1]


# --------------------------------------------------------------------------------------------------------- missing data

NAN = np.nan
MEAN, SD = np.array([0.5, -1.0, 2.0]), np.array([1.0, 2.0, 0.5])
COVARIANCE = np.array([[1.0, 0.6, 0.2], [0.6, 2.0, -0.3], [0.2, -0.3, 0.5]])
ROWS = [[0.1, 0.2, 0.3], [NAN, 0.2, 0.3], [0.1, NAN, 0.3], [NAN, NAN, 0.3], [0.1, NAN, NAN], [NAN, NAN, NAN]]


@pytest.mark.parametrize("independent", [True, False])
def test_missing_components_are_marginalised_exactly(independent, x64):
    d = (
        dist.Normal(jnp.asarray(MEAN), jnp.asarray(SD)).to_event(1)
        if independent
        else dist.MultivariateNormal(jnp.asarray(MEAN), jnp.asarray(COVARIANCE))
    )
    covariance = np.diag(SD**2) if independent else COVARIANCE
    found = jax.jit(jax.vmap(lambda y: observed_log_prob(d, y)))(jnp.array(ROWS))
    for row, value in zip(np.array(ROWS), found, strict=True):
        seen = ~np.isnan(row)
        expected = (
            stats.multivariate_normal(MEAN[seen], covariance[np.ix_(seen, seen)]).logpdf(row[seen])
            if any(seen)
            else 0.0
        )
        np.testing.assert_allclose(value, expected, rtol=1e-10, atol=1e-12)


def test_a_batch_of_independent_components_drops_the_missing_ones(x64):
    # Zero is outside the support of a log-normal: what stands for a missing value must not be.
    @jax.jit
    @jax.value_and_grad
    def seen(m):
        return observed_log_prob(dist.LogNormal(m, 1.0), jnp.array([2.0, NAN]))

    value, gradient = seen(jnp.zeros(2))
    np.testing.assert_allclose(value, stats.lognorm(1.0).logpdf(2.0), rtol=1e-10)
    np.testing.assert_allclose(gradient, [np.log(2.0), 0.0], atol=1e-12)  # and no NaN enters the gradient


def test_what_cannot_be_marginalised_may_only_be_missing_as_a_whole(x64):
    d = dist.MultivariateStudentT(5.0, jnp.zeros(2), jnp.eye(2))
    shape = jax.ShapeDtypeStruct((2,), jnp.float64)
    assert not can_be_partly_missing(d, shape)
    assert can_be_partly_missing(dist.Normal(jnp.zeros(2), 1.0).to_event(1), shape)
    assert can_be_partly_missing(dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2)), shape)
    y = np.array([0.3, -0.2])
    found = jax.jit(jax.vmap(lambda y: observed_log_prob(d, y)))(jnp.array([[NAN, NAN], y]))
    expected = stats.multivariate_t(np.zeros(2), np.eye(2), 5.0).logpdf(y)
    np.testing.assert_allclose(found, [0.0, expected], rtol=1e-10)


# ------------------------------------------------------------------------------------------------- one draw each

N = 2000
LOCATION = np.linspace(-3.0, 3.0, N)  # every particle has its own

# distribution of one particle; and the exact distribution function of draw i, from SciPy
CONTINUOUS = {
    "normal": (lambda m: dist.Normal(m, 2.0), lambda x: stats.norm(LOCATION, 2.0).cdf(x)),
    "cauchy": (lambda m: dist.Cauchy(m, 2.0), lambda x: stats.cauchy(LOCATION, 2.0).cdf(x)),
    "student_t": (lambda m: dist.StudentT(4.0, m, 2.0), lambda x: stats.t(4.0, LOCATION, 2.0).cdf(x)),
    "gamma": (lambda m: dist.Gamma(2.0, jnp.exp(m)), lambda x: stats.gamma(2.0, scale=np.exp(-LOCATION)).cdf(x)),
    "inverse_gamma": (
        lambda m: dist.InverseGamma(0.6, jnp.exp(m)),
        lambda x: stats.invgamma(0.6, scale=np.exp(LOCATION)).cdf(x),
    ),
    "beta": (lambda m: dist.Beta(2.0, 1.0 + jnp.exp(m)), lambda x: stats.beta(2.0, 1.0 + np.exp(LOCATION)).cdf(x)),
    "mixture": (
        lambda m: dist.MixtureSameFamily(
            dist.Categorical(jnp.array([0.3, 0.7])), dist.Normal(jnp.stack([m - 4.0, m + 2.0]), jnp.array([0.5, 1.0]))
        ),
        lambda x: 0.3 * stats.norm(LOCATION - 4.0, 0.5).cdf(x) + 0.7 * stats.norm(LOCATION + 2.0, 1.0).cdf(x),
    ),
    "log_normal": (lambda m: dist.LogNormal(m, 2.0), lambda x: stats.norm(LOCATION, 2.0).cdf(np.log(x))),
    "half_normal": (
        lambda m: dist.HalfNormal(jnp.exp(m)),
        lambda x: 2 * stats.norm(0.0, np.exp(LOCATION)).cdf(x) - 1,
    ),
    "truncated_normal": (
        lambda m: dist.TruncatedNormal(m, 1.0, low=-1.0),
        lambda x: stats.truncnorm(-1.0 - LOCATION, np.inf, LOCATION, 1.0).cdf(x),
    ),
}


def draws(distribution):
    return np.asarray(jax.jit(lambda key, m: sample_each(key, distribution, N, m))(jax.random.key(0), LOCATION), float)


def assert_independent_uniforms(u):
    # Kolmogorov-Smirnov: sqrt(N) times the distance exceeds 1.95 with probability 0.001. Means of N uniforms have a
    # standard error of 1 / sqrt(12 N) = 0.0065, correlations of neighbours one of 1 / sqrt(N) = 0.022.
    assert stats.kstest(u, "uniform").statistic < 1.95 / N**0.5
    assert abs(np.mean(u) - 0.5) < 4 * 0.0065
    assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 4 * 0.022


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTINUOUS)
def test_each_particle_gets_its_own_draw_from_its_own_distribution(name, x64):
    distribution, cdf = CONTINUOUS[name]
    x = draws(distribution)
    assert x.shape == (N,)
    assert len(np.unique(x)) == N
    assert_independent_uniforms(cdf(x))


OTHERS = {
    "LogNormal": lambda m: dist.LogNormal(m, 1.0),
    "LogNormal, a vector": lambda m: dist.LogNormal(jnp.stack([m, -m]), 1.0).to_event(1),
    "HalfNormal": lambda m: dist.HalfNormal(jnp.exp(m)),
    "HalfCauchy": lambda m: dist.HalfCauchy(jnp.exp(m)),
    "Pareto": lambda m: dist.Pareto(1.0, jnp.exp(m)),
    "LogUniform": lambda m: dist.LogUniform(1.0, 2.0 + jnp.exp(m)),
    "InverseGamma": lambda m: dist.InverseGamma(2.0, jnp.exp(m)),
    "Weibull": lambda m: dist.Weibull(jnp.exp(m), 2.0),
    "expanded": lambda m: dist.Normal(m, 1.0).expand([2]).to_event(1),
    "affine": lambda m: dist.TransformedDistribution(dist.Normal(m, 1.0), dist.transforms.AffineTransform(1.0, 2.0)),
    "NegativeBinomial2": lambda m: dist.NegativeBinomial2(1e6 * jnp.exp(m), 2.0),
}


def test_no_family_draws_once_for_all_particles():
    """Even one that is made of others: of equal distributions, all draws differ."""
    m = jnp.full(50, 0.3)
    found = jax.jit(lambda key: {name: sample_each(key, family, 50, m) for name, family in OTHERS.items()})(
        jax.random.key(0)
    )
    for name, x in found.items():
        for component in np.asarray(x).reshape(50, -1).T:
            # of counts of order 1e6 two of 50 are equal with a probability of 1225 / 1e6; floats have 2^23 words
            assert len(np.unique(component)) >= 49, name


@pytest.mark.parametrize("name", ["student_t", "gamma", "inverse_gamma", "beta"])
def test_draws_made_of_gammas_are_made_for_all_particles_at_once(name):
    """And not by jax's own, of which one is made after the other."""
    program = str(
        jax.make_jaxpr(lambda key, m: sample_each(key, CONTINUOUS[name][0], 50, m))(jax.random.key(0), LOCATION[:50])
    )
    assert "log_gamma" in program
    assert "random_gamma" not in program
    assert "random_split[shape=(50,)]" not in program  # one key for all


class Shifted(dist.StudentT):
    """A family of somebody's own, with a number more than it has constraints for."""

    def __init__(self, df, loc, shift=10.0):
        super().__init__(df, loc, 1.0)
        self.shift = shift

    def sample(self, key, sample_shape=()):
        return super().sample(key, sample_shape) + self.shift


@pytest.mark.parametrize(
    ("family", "law"),
    [
        (lambda m: Shifted(4.0, m, 5.0), stats.t(4.0, 5.0)),
        (lambda m: dist.StudentT(4.0, jnp.stack([m, m]), 1.0).to_event(1), stats.t(4.0)),
        (lambda m: dist.TruncatedNormal(m, 1.0, low=0.0), stats.truncnorm(0.0, np.inf)),
        (lambda m: dist.Beta(2.0, 3.0 + m), stats.beta(2.0, 3.0)),
    ],
    ids=["with a number of its own", "a vector", "truncated", "beta"],
)
def test_distributions_made_of_others_keep_their_law_and_their_own_numbers(family, law):
    x = jax.jit(lambda key: sample_each(key, family, N, jnp.zeros(N)))(jax.random.key(6))
    for component in np.asarray(x, float).reshape(N, -1).T:
        assert_independent_uniforms(law.cdf(component))


@pytest.mark.slow
def test_counts_made_of_other_draws_stay_whole_numbers():
    family = lambda m: dist.DirichletMultinomial(jnp.stack([1.0 + m, 2.0 + m]), 5)  # noqa: E731
    x = sample_each(jax.random.key(7), family, 10, jnp.zeros(10))
    assert x.dtype == family(0.0).sample(jax.random.key(0)).dtype
    np.testing.assert_array_equal(x.sum(axis=1), 5)


def test_what_is_drawn_beside_gammas_is_drawn_as_before():
    def sample(key):
        one, other = jax.random.split(key)
        jax.debug.callback(lambda: None)
        return {"gamma": jax.random.gamma(one, 2.0, (3,)), "rest": jax.nn.relu(jax.random.normal(other, (3,)))}

    key = stream(jax.random.key(4))
    found = jax.jit(lambda key: with_own_gammas(sample, key))(key)
    np.testing.assert_array_equal(found["rest"], sample(key)["rest"])
    slope = jax.grad(lambda a: with_own_gammas(lambda key: jax.random.gamma(key, a), key))(2.0)
    assert np.isfinite(slope)
    assert slope > 0


def test_each_particle_gets_its_own_draw_of_a_vector(x64):
    scale = np.array([[1.0, 0.0], [0.8, 0.6]])
    x = draws(lambda m: dist.MultivariateNormal(jnp.stack([m, 2 * m]), scale_tril=jnp.asarray(scale)))
    assert x.shape == (N, 2)
    white = np.linalg.solve(scale, (x - np.stack([LOCATION, 2 * LOCATION], axis=1)).T)
    for component in white:
        assert_independent_uniforms(stats.norm.cdf(component))
    assert abs(np.corrcoef(white)[0, 1]) < 4 * 0.022


def test_each_particle_gets_its_own_draw_of_a_count(x64):
    x = draws(lambda m: dist.Poisson(jnp.exp(m)))
    rate = np.exp(LOCATION)
    standardised = (x - rate) / np.sqrt(rate)
    # Mean zero, variance one: standard errors 1 / sqrt(N) = 0.022 and sqrt((2 + mean 1/rate) / N) = 0.051, the mean of
    # exp(-m) over (-3, 3) being sinh(3) / 3 = 3.3.
    assert abs(standardised.mean()) < 4 * 0.022
    assert abs(standardised.var() - 1) < 4 * 0.051
    assert abs(np.corrcoef(standardised[1:], standardised[:-1])[0, 1]) < 4 * 0.022


INDEXED = {
    "by the state": lambda: epf.StateSpaceModel(
        prior={"mu": dist.Normal(jnp.array([-1.0, 1.0]), 0.5).to_event(1)},
        initial=lambda theta: dist.Categorical(probs=jnp.array([0.5, 0.5])),
        transition=lambda theta, x, u: dist.Categorical(probs=jnp.array([[0.9, 0.1], [0.1, 0.9]])[x]),
        observation=lambda theta, x, u: dist.Normal(theta["mu"][x], 0.5),
    ),
    "by the input": lambda: epf.StateSpaceModel(
        prior={"season": dist.Normal(jnp.zeros(4), 0.5).to_event(1)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(0.9 * x + theta["season"][u % 4], 1.0),
        observation=lambda theta, x, u: dist.Normal(x, theta["season"].at[0].get() ** 2 + 1.0),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "build", [epf.extended_parameter_filter, epf.liu_west_filter, functools.partial(epf.online_em, wait=2)]
)
@pytest.mark.parametrize("model", INDEXED)
def test_a_model_may_index_its_parameters_by_what_is_traced(model, build):
    results = epf.run(jax.random.key(0), build(INDEXED[model](), 20), jnp.array([0.5, -1.0, 1.2]))
    assert np.isfinite(results.log_evidence).all()


class OwnWay(dist.Distribution):
    """A Normal that flattens itself in a way of its own, as numpyro lets a family do."""

    support = dist.constraints.real

    def __init__(self, loc, scale):
        self.loc, self.scale = loc, scale
        super().__init__(batch_shape=jax.lax.broadcast_shapes(jnp.shape(loc), jnp.shape(scale)))

    def sample(self, key, sample_shape=()):
        return self.loc + self.scale * jax.random.normal(key, sample_shape + self.batch_shape)

    def log_prob(self, value):
        return dist.Normal(self.loc, self.scale).log_prob(value)

    def tree_flatten(self):
        return (self.scale, self.loc), None

    @classmethod
    def tree_unflatten(cls, aux, numbers):
        made = object.__new__(cls)
        made.scale, made.loc = numbers
        dist.Distribution.__init__(made, batch_shape=jnp.shape(numbers[0]))
        return made


def test_a_family_that_flattens_itself_in_its_own_way_is_drawn_from():
    rows = jnp.arange(5.0) * 100
    drawn = sample_each(jax.random.key(0), lambda loc: OwnWay(loc, jnp.ones(())), 5, rows)
    assert np.all(np.abs(drawn - rows) < 6.0)  # six standard deviations


@pytest.mark.parametrize(
    "distribution",
    [
        lambda m: dist.Normal(m, 2.0),
        pytest.param(lambda m: dist.Normal(m * jnp.ones(3), jnp.arange(1.0, 4.0)).to_event(1), marks=pytest.mark.slow),
        pytest.param(
            lambda m: dist.MultivariateNormal(m * jnp.ones(2), jnp.array([[2.0, 0.5], [0.5, 1.0]])),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda m: dist.MultivariateNormal(
                jnp.zeros(2), scale_tril=(1.0 + m**2) * jnp.array([[1.0, 0.0], [0.5, 1.0]])
            ),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["normal", "independent", "covariance", "scale_tril"],
)
def test_gaussian_draws_are_those_of_numpyro_by_another_quantile(distribution, precision):
    rows = jnp.linspace(-1.0, 1.0, 200)
    drawn = sample_each(jax.random.key(3), distribution, 200, rows)
    theirs = promote_batch_shape(jax.vmap(distribution)(rows)).sample(jax.random.key(3))
    assert drawn.dtype == theirs.dtype
    # Both quantiles of a normal below 5 times at most 4: jax's is off by 6e-6 of it in float32, by 1.1e-10 in float64.
    np.testing.assert_allclose(drawn, theirs, rtol=0, atol=20 * {"float32": 7e-6, "float64": 3e-10}[precision])


def test_states_have_at_most_one_name_for_each_number():
    named = counter(lambda x, u: x, lambda x, u: x, state_names=("level",))
    assert known(named, {"a": 0.0}).state_names == ("level",)
    too_many = counter(lambda x, u: x, lambda x, u: x, state_names=("level", "trend"))
    with pytest.raises(ValueError, match=r"state_names: 2 names were given for a state of 1 numbers. Give at most one"):
        _ = too_many.shapes
