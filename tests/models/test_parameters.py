"""theta <-> z: round trips, Jacobians, prior draws, stand-ins for distributions."""

from math import log, pi

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import epf_jax as epf
from epf_jax.models.parameters import parameters

PRIORS = {
    "scalar_real": lambda: dist.Normal(1.0, 2.0),
    "scalar_positive": lambda: dist.HalfNormal(1.5),
    "scalar_interval": lambda: dist.Uniform(-2.0, 5.0),
    "scalar_unit_interval": lambda: dist.Kumaraswamy(2.0, 3.0),
    "vector_real": lambda: dist.MultivariateNormal(jnp.zeros(2), jnp.array([[1.0, 0.5], [0.5, 2.0]])),
    "vector_by_batch": lambda: dist.LogNormal(jnp.array([0.0, 1.0]), 0.5),
    "dict": lambda: {
        "phi": dist.Uniform(-1.0, 1.0),
        "mu": dist.Normal(jnp.zeros(2), 1.0).to_event(1),
        "scales": (dist.HalfNormal(1.0),),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PRIORS)
def test_theta_goes_to_z_and_back(name, x64):
    coordinates = parameters(PRIORS[name]())

    @jax.jit
    def round_trip(key):
        theta = coordinates.sample(key, 20)
        z = jax.vmap(coordinates.to_vector)(theta)
        back = jax.vmap(coordinates.to_theta)(z)
        return theta, z, back, jax.vmap(coordinates.to_vector)(back)

    theta, z, back, z_back = round_trip(jax.random.key(0))
    assert z.shape == (20, coordinates.dim)
    assert len(coordinates.names) == coordinates.dim == coordinates.centre.shape[0] == coordinates.scale.shape[0]
    assert jax.tree.structure(back) == jax.tree.structure(theta)
    for a, b in zip(jax.tree.leaves(theta), jax.tree.leaves(back), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(z_back, z, rtol=1e-8, atol=1e-8)


QUICK = ("scalar_unit_interval", "dict")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in PRIORS])
def test_the_log_prior_of_z_is_the_density_of_theta_times_the_jacobian(name, x64):
    # d theta / d z by forward mode on the flattened leaves, a square matrix for all these supports.
    prior = PRIORS[name]()
    coordinates = parameters(prior)
    distributions = jax.tree.leaves(prior, is_leaf=lambda d: isinstance(d, dist.Distribution))

    def flat(z):
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(coordinates.to_theta(z))])

    @jax.jit
    @jax.vmap
    def both(z):
        log_jacobian = jnp.linalg.slogdet(jax.jacfwd(flat)(z))[1]
        leaves = jax.tree.leaves(coordinates.to_theta(z))
        log_density = sum(jnp.sum(d.log_prob(leaf)) for d, leaf in zip(distributions, leaves, strict=True))
        return (coordinates.log_jacobian(z), coordinates.log_prior(z)), (log_jacobian, log_density + log_jacobian)

    z = np.random.default_rng(1).normal(size=(4, coordinates.dim))
    found, expected = both(coordinates.centre + coordinates.scale * z)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_log_priors_of_z_have_their_closed_forms(x64):
    z = np.linspace(-3.0, 2.0, 7)
    # theta = exp(z) log-normal: z is normal.
    found = jax.vmap(parameters(dist.LogNormal(0.3, 0.5)).log_prior)(jnp.asarray(z)[:, None])
    np.testing.assert_allclose(found, -0.5 * ((z - 0.3) / 0.5) ** 2 - log(0.5) - 0.5 * log(2 * pi), rtol=1e-10)
    # theta = a + (b - a) sigmoid(z) uniform on (a, b): z is logistic.
    found = jax.vmap(parameters(dist.Uniform(-2.0, 5.0)).log_prior)(jnp.asarray(z)[:, None])
    np.testing.assert_allclose(found, -z - 2 * np.log1p(np.exp(-z)), rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PRIORS if name.startswith("scalar")])
def test_the_density_of_z_integrates_to_one(name, x64):
    coordinates = parameters(PRIORS[name]())
    # 60 scales to either side leave out less than 1e-12 of a density with exponential tails (0.5 of its decay per
    # scale or more); 20001 points space them 0.006 scales apart, far below what the trapezoidal rule needs.
    z = coordinates.centre[0] + coordinates.scale[0] * jnp.linspace(-60.0, 60.0, 20001)
    density = jnp.exp(jax.jit(jax.vmap(coordinates.log_prior))(z[:, None]))
    np.testing.assert_allclose(jnp.sum(density) * (z[1] - z[0]), 1.0, rtol=1e-8)


@pytest.mark.slow
def test_a_circle_is_cut_where_its_prior_is_least(x64):
    """An angle around 3 is an angle around 0 but for a rotation, though it lies on both sides of pi."""
    at_seam, at_zero = (parameters({"angle": dist.VonMises(loc, 2.0)}) for loc in (3.0, 0.0))
    z = jnp.linspace(-4.0, 4.0, 9)[:, None]
    angles = jax.vmap(at_seam.to_theta)(z)["angle"]
    np.testing.assert_allclose(jnp.cos(angles - 3.0), jnp.cos(jax.vmap(at_zero.to_theta)(z)["angle"]), atol=1e-12)
    assert np.all(np.abs(angles - 3.0) <= np.pi)
    draws = at_seam.sample(jax.random.key(0), 4000)["angle"]
    # Told about 3, they have their mean there: a standard deviation of .81 leaves a standard error of .013.
    assert abs(float(jnp.mean(draws)) - 3.0) < 4 * 0.013
    np.testing.assert_allclose(jax.vmap(lambda a: at_seam.to_vector({"angle": a}))(angles), z, rtol=1e-9)
    np.testing.assert_allclose(jax.vmap(at_seam.log_prior)(z), jax.vmap(at_zero.log_prior)(z), rtol=1e-9)
    np.testing.assert_allclose(at_seam.scale, at_zero.scale, rtol=1e-9)


def test_prior_draws_have_the_priors_distribution_and_structure():
    coordinates = parameters({"phi": dist.Uniform(-1.0, 1.0), "scale": dist.LogNormal(0.0, 0.5)})
    draws = coordinates.sample(jax.random.key(0), 4000)
    assert {name: leaf.shape for name, leaf in draws.items()} == {"phi": (4000,), "scale": (4000,)}
    # Kolmogorov-Smirnov at 4000 draws: the distance stays below 1.95 / sqrt(4000) = 0.031 with probability 0.999.
    for name, exact in (("phi", stats.uniform(-1.0, 2.0)), ("scale", stats.lognorm(0.5))):
        assert stats.kstest(np.asarray(draws[name], float), exact.cdf).statistic < 0.031
    # Independent across leaves: a correlation of 4000 pairs has a standard error of 1 / sqrt(4000) = 0.016.
    assert abs(np.corrcoef(draws["phi"], draws["scale"])[0, 1]) < 4 * 0.016


@pytest.mark.parametrize(
    ("prior", "exact"),
    [
        (dist.TruncatedNormal(0.0, 1.0, high=1.0), stats.truncnorm(-np.inf, 1.0)),
        (dist.Beta(50.0, 1.0), stats.beta(50.0, 1.0)),
        *(
            pytest.param(*pair, marks=pytest.mark.slow)
            for pair in (
                (dist.Normal(1.0, 2.0), stats.norm(1.0, 2.0)),
                (dist.LogNormal(0.3, 0.5), stats.lognorm(0.5, scale=np.exp(0.3))),
                (dist.Uniform(-1.0, 1.0), stats.uniform(-1.0, 2.0)),
                (dist.HalfNormal(1.0), stats.halfnorm()),
                (dist.Gamma(0.5, 1.0), stats.gamma(0.5)),
                (dist.HalfCauchy(1.0), stats.halfcauchy()),
            )
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_first_box_leaves_out_little_of_the_prior_near_its_bounds_too(prior, exact, x64):
    low, high = sorted(float(parameters(prior).to_theta(end)) for end in parameters(prior).box)
    # Meant to be 2e-4 to either side: the 20th of 4001 draws, that it is told from, is a quantile to a fifth or so, and
    # what is told from it to its power 1.7 or less.
    assert exact.cdf(low) < 5e-4
    assert exact.sf(high) < 5e-4


@pytest.mark.parametrize("prior", [dist.Gamma(0.05, 0.05), dist.LogNormal(0.0, 35.0), dist.InverseGamma(0.04, 0.04)])
def test_draws_that_underflow_leave_a_box_all_the_same(prior):
    low, high = parameters(prior).box  # in float32
    assert np.all(np.isfinite([low, high]))
    assert low < high


def test_centre_and_scale_are_the_priors_own_or_robust(x64):
    real = parameters(dist.Normal(1.0, 2.0))
    np.testing.assert_allclose([real.centre[0], real.scale[0]], [1.0, 2.0])
    assert real.is_real
    # log of a log-normal is N(0.3, 0.5^2). From 4001 draws: a median errs by 1.25 sd / sqrt(4001) = 0.01, half the
    # 68% range by about 0.008; four of each are allowed.
    positive = parameters(dist.LogNormal(0.3, 0.5))
    assert not positive.is_real
    assert abs(positive.centre[0] - 0.3) < 0.04
    assert abs(positive.scale[0] - 0.5) < 0.032
    # A Cauchy has no moments, yet a centre and a scale: the 68% range of Cauchy(2, 1) is 2 +- tan(0.341 pi) = 1.84.
    heavy = parameters(dist.Cauchy(2.0, 1.0))
    assert abs(heavy.centre[0] - 2.0) < 0.1  # median: standard error (pi / 2) / sqrt(4001) = 0.025
    assert abs(heavy.scale[0] - 1.84) < 0.4  # quartile-like: density 0.073 there, standard error 0.08


class Shifted:
    """A stand-in for dist.Normal: sample(key) and log_prob(value), nothing else."""

    def __init__(self, location, scale):
        self.location, self.scale = location, scale

    def sample(self, key):
        return self.location + self.scale * jax.random.normal(key, jnp.shape(self.location))

    def log_prob(self, value):
        return -0.5 * ((value - self.location) / self.scale) ** 2 - jnp.log(self.scale) - 0.5 * jnp.log(2 * jnp.pi)


@pytest.mark.slow
def test_stand_ins_with_sample_and_log_prob_serve_everywhere(x64):
    def model(normal):
        return epf.StateSpaceModel(
            prior={"phi": normal(0.3, 0.5)},
            initial=lambda theta: normal(0.0, 1.0),
            transition=lambda theta, x, u: normal(theta["phi"] * x, 1.0),
            observation=lambda theta, x, u: normal(x, 0.5),
        )

    stand_in, numpyro = model(Shifted), model(dist.Normal)
    # No mean is known, so 4001 draws give it: standard error 0.5 * 1.25 / sqrt(4001) = 0.01.
    assert abs(stand_in.parameters.centre[0] - 0.3) < 0.04
    y = jnp.array([0.3, 1.1, 0.9, 1.6, 1.2, -0.2, -0.9, 0.1])
    statistic = epf.chebyshev(stand_in, 8, shrink=None)
    results = epf.run(
        jax.random.key(1), epf.extended_parameter_filter(stand_in, 2000, statistic=statistic), y, levels=()
    )
    exact = epf.exact.kalman(numpyro, y, {"phi": jnp.linspace(-2.5, 3.0, 56)})
    # Weights of relative variance about 1 at each of 8 steps: the log-evidence errs by sqrt(8 / 2000) = 0.06; the
    # posterior mean of phi, of sd 0.3, by less than the same share of that.
    assert abs(float(results.log_evidence[-1]) - exact.log_evidence[-1]) < 4 * 0.06
    assert abs(float(results.theta.mean["phi"][-1]) - exact.mean["phi"][-1]) < 4 * 0.06 * 0.3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["epf", "liu_west"])
def test_every_draw_of_theta_stays_inside_the_support(name):
    # Hardly any noise in the data: theta goes to the edge, which a filter working in theta itself would step across.
    model = epf.StateSpaceModel(
        prior={"noise": dist.HalfNormal(1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(0.9 * x, theta["noise"]),
        observation=lambda theta, x, u: dist.Normal(x, 0.5),
    )
    if name == "epf":
        statistic = epf.chebyshev(model, 6, shrink=None)
        filter_ = epf.extended_parameter_filter(model, 64, statistic=statistic, proposal=epf.bootstrap())
    else:
        filter_ = epf.liu_west_filter(model, 64)
    y = 0.9 ** jnp.arange(1, 26)
    results = epf.run(jax.random.key(1), filter_, y, levels=(), history=True)
    noise = np.asarray(results.history.theta["noise"])
    assert np.all(noise > 0)
    assert np.min(noise) < 0.1  # a tenth of the prior's scale: the edge was tried
    assert np.all(np.any(np.diff(np.sort(noise, axis=1), axis=0) != 0, axis=1))  # and theta moved at every step
    assert int(results.num_bad_weights.sum()) == 0


class Wide:
    """A distribution of the user's own, whose moments are narrower than its draws."""

    support = dist.constraints.real
    mean, variance = jnp.zeros((2, 1)), jnp.full((2, 1), 4.0)

    def sample(self, key, shape=()):
        return 2.0 * jax.random.normal(key, (*shape, 2, 3))

    def log_prob(self, value):
        return jnp.sum(dist.Normal(0.0, 2.0).log_prob(value))


def test_moments_are_broadcast_to_the_shape_of_theta():
    coordinates = parameters({"w": Wide()})
    np.testing.assert_array_equal(coordinates.centre, np.zeros(6))
    np.testing.assert_array_equal(coordinates.scale, np.full(6, 2.0))


def test_draws_rounded_onto_the_edge_of_the_support_are_moved_inside():
    """A Gamma(0.1) underflows once in some thousand draws, a uniform number is exactly zero once in eight million."""

    class AtTheEdge(dist.Uniform):
        def sample(self, key, sample_shape=()):
            drawn = super().sample(key, sample_shape)
            return drawn.at[0].set(self.low) if sample_shape else drawn

    for prior in (dist.Gamma(0.1, 1.0), AtTheEdge(0.0, 1.0), AtTheEdge(-1.0, 1.0)):
        coordinates, num = parameters({"a": prior}), 50_000
        assert np.any(np.asarray(prior.sample(jax.random.key(0), (num,))) == prior.support.lower_bound)
        draws = coordinates.sample(jax.random.key(0), num)
        assert np.all(np.isfinite(jax.vmap(coordinates.to_vector)(draws)))


@pytest.mark.slow
def test_draws_at_the_edge_leave_gradients_of_the_others():
    def total(rate):
        return jnp.sum(parameters(dist.Gamma(0.05, rate)).sample(jax.random.key(0), 2000))

    # Draws are standard ones divided by the rate, so that their sum has minus itself as its derivative at one.
    np.testing.assert_allclose(jax.grad(total)(1.0), -total(1.0), rtol=1e-5)


@pytest.mark.parametrize("d", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_singular_draws_do_not_spoil_the_coordinates_of_a_matrix(d):
    coordinates = parameters({"V": dist.InverseWishart(float(d), jnp.eye(d))})
    assert np.all(np.isfinite(coordinates.centre))
    assert np.all(np.isfinite(coordinates.scale))
    assert np.all(coordinates.scale > 0)


@pytest.mark.parametrize(
    ("prior", "name"),
    [
        ({"a": {"b": dist.Normal(0.0, 1.0)}, "a.b": dist.Normal(0.0, 1.0)}, "a.b"),
        ({"a": dist.Normal(jnp.zeros(2), 1.0), "a[0]": dist.Normal(0.0, 1.0)}, r"a\[0\]"),
    ],
)
def test_parameters_that_print_alike_are_refused(prior, name):
    with pytest.raises(ValueError, match=rf"prior: two parameters would both be called '{name}'"):
        epf.StateSpaceModel(prior, lambda t: dist.Normal(0, 1), lambda t, x, u: dist.Normal(x, 1), lambda t, x, u: x)


def test_names_that_cannot_be_sorted_are_refused():
    with pytest.raises(ValueError, match=r"^prior: its names cannot be put in order\. Make each of them a text\.$"):
        parameters({1: dist.Normal(), "1": dist.Normal()})
