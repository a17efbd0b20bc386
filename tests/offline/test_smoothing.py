"""Claims about the states in hindsight: oracles first, then paths drawn exactly and by sweeps, judged by them."""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
import pytest
import tiny

import epf_jax as epf
from epf_jax import exact
from epf_jax.exact.linear_paths import draw_linear_path
from epf_jax.offline.smoothing import Smoothed

KEY, T = jax.random.key(3), 12
AR1 = epf.models.ar1()  # x_t = phi x_{t-1} + N(0, 1), y_t = x_t + N(0, 0.5^2)
FILTER = epf.bootstrap_filter(AR1, 500)
Y = jnp.asarray(np.where(np.arange(T) == 4, np.nan, tiny.autoregression(T)), float)
LAGGED = epf.StateSpaceModel(  # an AR(2) with an input, as a state of two lags of which the second is a copy
    prior={"a": dist.Normal(0.5, 0.5)},
    initial=lambda theta: dist.Normal(jnp.array([1.0, -1.0]), 1.0).to_event(1),
    transition=lambda theta, x, u: dist.Normal(
        jnp.stack([theta["a"] * x[0] - 0.5 * x[1] + u, x[0]]), jnp.array([0.7, 0.0]), validate_args=False
    ).to_event(1),
    observation=lambda theta, x, u: dist.Normal(x[0] + 0.1 * u, 0.5),
)
COUNTS = epf.StateSpaceModel(
    prior={"phi": dist.Uniform(0.0, 1.0)},
    initial=lambda theta: dist.Normal(0.0, 1.0),
    transition=lambda theta, x, u: dist.Normal(theta["phi"] * x, 0.5),
    observation=lambda theta, x, u: dist.Poisson(jnp.exp(x)),
)


def joint_laws(model, thetas, inputs, y):
    """Mean and covariance of the flat path x_0 .. x_T given y, for each theta: algebra on the Gaussian of all noises."""
    n, shape = max(1, model.shapes.x.size), model.shapes.x.shape

    def path(theta, noises):
        x = model.initial(theta).mean.reshape(n) + jnp.sqrt(model.initial(theta).variance).reshape(n) * noises[0]
        states, seen = [x], []
        for noise, u in zip(noises[1:], inputs, strict=True):
            step = model.transition(theta, x.reshape(shape), u)
            x = step.mean.reshape(n) + jnp.sqrt(step.variance).reshape(n) * noise
            states.append(x)
            seen.append(jnp.ravel(model.observation(theta, x.reshape(shape), u).mean))
        return jnp.concatenate([*states, *seen])

    with jax.enable_x64(True):
        zero = jnp.zeros((len(inputs) + 1, n))
        each = jax.jit(jax.vmap(lambda theta: (path(theta, zero), jax.jacobian(path, 1)(theta, zero))))
        found = zip(*map(np.asarray, each(jax.tree.map(jnp.asarray, thetas))), strict=True)
    size, kept, laws = zero.size, np.flatnonzero(~np.isnan(np.asarray(y))), []
    for mean, jacobian in found:
        J = jacobian.reshape(len(mean), -1)
        # Least squares for the noises, N(0, 1) each, by rotations: y has noise 0.5, and no covariance is subtracted.
        seen, gap = J[size + kept] / 0.5, (np.asarray(y, float)[kept] - mean[size + kept]) / 0.5
        Q, R = np.linalg.qr(np.vstack([np.eye(size), seen]))
        half = np.linalg.solve(R.T, J[:size].T).T
        laws.append((mean[:size] + half @ (Q.T @ np.concatenate([np.zeros(size), gap])), half @ half.T))
    return laws


def joint_law(model, theta, inputs, y):
    return joint_laws(model, {name: np.array([value]) for name, value in theta.items()}, inputs, y)[0]


# --------------------------------------------------------------------------------------------------------- oracles


def test_both_oracles_are_the_algebra_of_the_joint_gaussian():
    mean, covariance = joint_law(AR1, {"phi": 0.8}, np.arange(1.0, T + 1), Y)
    with jax.enable_x64(True):
        by_kalman = exact.kalman_states(AR1, {"phi": 0.8}, np.asarray(Y, float))
        by_nodes = exact.quadrature_states(AR1, {"phi": 0.8}, np.asarray(Y, float), jnp.linspace(-9.0, 9.0, 150))
    for found in (by_kalman, by_nodes):
        np.testing.assert_allclose(found[0], mean, atol=1e-6)
        np.testing.assert_allclose(found[1], np.sqrt(np.diag(covariance)), atol=1e-6)


@pytest.mark.slow
def test_kalmans_smoother_takes_copies_and_inputs():
    inputs = np.linspace(-1.0, 1.0, T)
    mean, covariance = joint_law(LAGGED, {"a": 1.1}, inputs, Y)
    with jax.enable_x64(True):
        found = exact.kalman_states(LAGGED, {"a": 1.1}, np.asarray(Y, float), inputs=inputs)
    np.testing.assert_allclose(np.ravel(found[0]), mean, atol=1e-6)
    np.testing.assert_allclose(np.ravel(found[1]), np.sqrt(np.diag(covariance)), atol=1e-6)


@pytest.mark.slow
def test_states_integrate_theta_out():
    grid = np.linspace(-2.5, 2.5, 101)  # both ends have weights next to zero
    found = exact.states(AR1, Y, {"phi": grid})
    posterior = exact.kalman(AR1, Y, {"phi": grid})
    weights = np.exp(posterior.log_density[-1])
    each = joint_laws(AR1, {"phi": grid}, np.arange(1.0, T + 1), Y)
    means, variances = (np.array(part) for part in zip(*[(m, np.diag(v)) for m, v in each], strict=True))
    mean = np.average(means, axis=0, weights=weights)
    np.testing.assert_allclose(found.mean, mean, atol=1e-4)
    np.testing.assert_allclose(
        found.sd, np.sqrt(np.average(variances + (means - mean) ** 2, axis=0, weights=weights)), atol=1e-4
    )


# ----------------------------------------------------------------------------------------------------- exact draws


@pytest.mark.slow
def test_vague_priors_gaps_and_explosions_do_no_harm_in_float32():
    trend = epf.StateSpaceModel(
        prior={"phi": dist.Normal(1.0, 0.1)},
        initial=lambda theta: dist.Normal(jnp.zeros(2), 1e3).to_event(1),
        transition=lambda theta, x, u: dist.Normal(
            jnp.stack([theta["phi"] * x[0] + x[1], x[1]]), jnp.array([0.1, 0.02])
        ).to_event(1),
        observation=lambda theta, x, u: dist.Normal(x[0], 0.5),
    )
    t = jnp.arange(1.0, 21.0)
    y = (5.0 + 0.2 * t + 0.5 * jnp.sin(7.0 * t)).at[jnp.array([0, 1, 10, 11])].set(jnp.nan)
    for phi in (1.0, 1.3):  # 1.3^20 = 190
        mean, covariance = joint_law(trend, {"phi": phi}, np.asarray(t, float), y)
        mean, sd = mean.reshape(21, 2), np.sqrt(np.diag(covariance)).reshape(21, 2)
        found = [np.asarray(part) for part in exact.kalman_states(trend, {"phi": phi}, y)]
        assert np.all(np.abs(found[0] - mean) < 0.01 * sd)
        np.testing.assert_allclose(found[1], sd, rtol=0.01)
        draw = jax.jit(jax.vmap(lambda key, phi=phi: draw_linear_path(key, trend, {"phi": phi}, y, t)))
        paths = np.asarray(draw(jax.random.split(KEY, 2000)), float)
        assert np.all(np.abs(paths.mean(axis=0) - mean) <= 5 * sd / 44)  # 44 = sqrt(2000)
        np.testing.assert_allclose(paths.std(axis=0), sd, rtol=5 / 63)


@pytest.mark.slow
def test_a_start_that_is_known_and_noise_of_rank_one_are_taken():
    pushed = epf.StateSpaceModel(  # a position and its velocity, pushed together; both are known at the start
        prior={"q": dist.LogNormal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(jnp.array([0.0, 1.0]), jnp.zeros(2), validate_args=False).to_event(1),
        transition=lambda theta, x, u: dist.MultivariateNormal(
            jnp.stack([x[0] + x[1], x[1]]),
            scale_tril=theta["q"] * jnp.array([[0.5, 0.0], [1.0, 0.0]]),
            validate_args=False,
        ),
        observation=lambda theta, x, u: dist.Normal(jnp.stack([x[0], x[1]]), 0.3).to_event(1),
    )
    y = jnp.stack([jnp.arange(1.0, 9.0), jnp.ones(8)], axis=1).at[2, 0].set(jnp.nan).at[4].set(jnp.nan)
    keys = jax.random.split(KEY, 4000)
    paths = np.asarray(jax.jit(jax.vmap(lambda key: draw_linear_path(key, pushed, {"q": 0.4}, y, jnp.arange(8))))(keys))
    # All is said by eight pushes e ~ N(0, 1): v_t = v_{t-1} + q e_t, p_t = p_{t-1} + v_{t-1} + q e_t / 2.
    J_v = 0.4 * np.tril(np.ones((8, 8)))
    J_p = np.cumsum(np.vstack([np.zeros(8), J_v[:-1]]), axis=0) + 0.2 * np.tril(np.ones((8, 8)))
    seen_p, seen_v = (~np.isnan(np.asarray(y[:, i])) for i in (0, 1))
    H = np.vstack([J_p[seen_p], J_v[seen_v]]) / 0.3  # y is at its mean without a push
    covariance = np.linalg.inv(np.eye(8) + H.T @ H)
    for i, J in ((0, J_p), (1, J_v)):
        sd = np.sqrt(np.diag(J @ covariance @ J.T))
        without = np.arange(1.0, 9.0) if i == 0 else np.ones(8)
        assert np.all(np.abs(paths[:, 1:, i].mean(axis=0) - without) <= 5 * sd / 63)  # 63 = sqrt(4000)
        np.testing.assert_allclose(paths[:, 1:, i].std(axis=0), sd, rtol=5 / 89)
    assert np.all(paths[:, 0] == [0.0, 1.0])


@pytest.mark.parametrize(
    ("model", "theta"), [pytest.param(AR1, {"phi": 0.8}, marks=pytest.mark.slow), (LAGGED, {"a": 1.1})]
)
def test_paths_of_a_linear_model_have_their_exact_law(model, theta):
    inputs, num = jnp.linspace(-1.0, 1.0, T), 20_000
    keys = jax.random.split(KEY, num)
    paths = jax.jit(jax.vmap(lambda key: draw_linear_path(key, model, theta, Y, inputs)))(keys)
    mean, covariance = joint_law(model, theta, np.asarray(inputs, float), Y)
    if model is LAGGED:  # a lag is copied, but for the rounding of a sum of the simulated one and a mean
        np.testing.assert_allclose(paths[:, 1:, 1], paths[:, :-1, 0], atol=1e-4)
    drawn = np.asarray(paths, float).reshape(num, -1)
    sd = np.sqrt(np.diag(covariance))
    # standard errors: of a mean sd / 141, of a covariance at most sqrt(2) sd sd' / 141; five of each
    np.testing.assert_allclose(drawn.mean(axis=0), mean, atol=5 / 141 * sd.max())
    assert np.all(np.abs(np.cov(drawn.T) - covariance) <= 5 * np.sqrt(2) / 141 * np.outer(sd, sd))


@pytest.fixture(scope="module")
def run():
    return epf.run(jax.random.key(1), FILTER, Y)


@pytest.fixture(scope="module")
def smoothed(run):
    return epf.smooth(KEY, FILTER, run.final, Y, num_paths=400)


def test_smoothed_states_are_those_of_the_particles_own_thetas(run, smoothed):
    phi, w = np.asarray(run.final.theta["phi"]), np.asarray(jnp.exp(run.final.log_weights))
    values, at = np.unique(phi, return_inverse=True)
    w = np.bincount(at, weights=w)
    each = joint_laws(AR1, {"phi": values[w > 1e-4]}, np.arange(1.0, T + 1), Y)
    means, variances = (np.array(part)[:, 1:] for part in zip(*[(m, np.diag(v)) for m, v in each], strict=True))
    mean = np.average(means, axis=0, weights=w[w > 1e-4])
    sd = np.sqrt(np.average(variances + (means - mean) ** 2, axis=0, weights=w[w > 1e-4]))
    # standard errors with 400 paths: sd / 20 and sd / 28; five of each
    assert np.all(np.abs(np.asarray(smoothed.x.mean) - mean) <= 5 * sd / 20)
    np.testing.assert_allclose(smoothed.x.sd, sd, rtol=5 / 28)
    assert smoothed.paths.shape == (400, T + 1)
    assert smoothed.theta["phi"].shape == (400,)
    assert smoothed.renewed.tolist() == [1.0] * (T + 1)


def test_thetas_of_the_paths_are_as_many_as_their_weights_say(run):
    state = run.final._replace(log_weights=jax.nn.log_softmax(jnp.arange(500.0) / 50))
    phi = np.sort(epf.smooth(KEY, FILTER, state, Y, num_paths=400).theta["phi"])
    order = np.argsort(state.theta["phi"], kind="stable")
    values, weights = np.asarray(state.theta["phi"])[order], np.asarray(jnp.exp(state.log_weights))[order]
    ends = np.append(values[1:] != values[:-1], True)  # of particles alike, after the last
    below = np.searchsorted(phi, values[ends], side="right") / 400
    # One draw in each of 400 strata of the particles in their own order: particles with phi below a value are intervals
    # of it, at most as many as there are values, and each is counted to within two; independently that is sqrt(2 n) / 400.
    assert np.abs(below - np.cumsum(weights)[ends]).max() < 4 * np.sqrt(2 * ends.sum()) / 400


@pytest.mark.slow
def test_a_progress_bar_changes_no_number(run, smoothed, capsys):
    shown = epf.smooth(KEY, FILTER, run.final, Y, num_paths=400, progress=True)
    assert "path" in capsys.readouterr().err
    np.testing.assert_allclose(shown.paths, smoothed.paths, atol=1e-5)  # pieces of another size round otherwise


# ---------------------------------------------------------------------------------------------------------- sweeps


@pytest.fixture(scope="module")
def counted():
    y = epf.simulate(jax.random.key(5), COUNTS, {"phi": 0.8}, T)[1]
    filter_ = epf.bootstrap_filter(COUNTS, 2000)
    return filter_, epf.run(jax.random.key(1), filter_, y).final, y


@pytest.mark.slow
def test_sweeps_come_to_the_exact_states_of_a_model_of_counts(counted):
    filter_, state, y = counted
    found = epf.smooth(KEY, filter_, state, y, num_paths=400, num_particles=20, num_sweeps=5)
    gold = exact.states(COUNTS, y, {"phi": np.linspace(0.001, 0.999, 21)}, np.linspace(-5.0, 5.0, 81))
    # standard errors with 400 paths: sd / 20 and sd / 28; theta's 2000 particles weigh by 12 observations, whose ESS is
    # hundreds, and the states hardly depend on them: five of the first suffice for both
    assert np.all(np.abs(np.asarray(found.paths).mean(axis=0) - gold.mean) <= 5 * gold.sd / 20)
    np.testing.assert_allclose(np.asarray(found.paths).std(axis=0), gold.sd, rtol=5 / 28)
    assert np.all(np.asarray(found.renewed) > 0.95)


@pytest.mark.slow
def test_paths_that_sweeps_do_not_renew_are_told_of(counted):
    filter_, state, y = counted
    with pytest.warns(RuntimeWarning, match=r"of the paths were drawn anew.*num_particles or num_sweeps"):
        epf.smooth(KEY, filter_, state, y, num_paths=50, num_particles=2, num_sweeps=1)


@pytest.mark.slow
@pytest.mark.parametrize("proposal", [epf.fully_adapted(AR1), epf.laplace(AR1), epf.bootstrap()])
def test_sweeps_of_every_proposal_come_to_the_exact_states(run, proposal):
    found = epf.smooth(KEY, FILTER, run.final, Y, num_paths=400, num_particles=30, num_sweeps=10, proposal=proposal)
    gold = exact.states(AR1, Y, {"phi": np.linspace(-2.5, 2.5, 101)})
    # as above; 500 particles of phi move the mean of a state by less than a tenth of its sd
    assert np.all(np.abs(np.asarray(found.paths).mean(axis=0) - gold.mean) <= (5 / 20 + 0.1) * gold.sd)


@pytest.mark.slow
def test_particle_gibbs_takes_laplace():
    found = epf.particle_gibbs(KEY, AR1, Y, proposal=epf.laplace(AR1), num_draws=1000, num_warmup=200)
    gold = exact.kalman(AR1, Y, {"phi": np.linspace(-2.5, 2.5, 101)})
    # 4000 draws are worth a few hundred: a standard error below 0.06 sd; five of them
    assert abs(float(found.theta.mean["phi"][-1]) - gold.mean["phi"][-1]) < 0.3 * gold.sd["phi"][-1]


@pytest.mark.slow
def test_regimes_are_smoothed_too():
    def move(theta, x, u):
        stay = theta["stay"]
        return dist.Categorical(jnp.stack([jnp.where(x == 0, stay, 1 - stay), jnp.where(x == 0, 1 - stay, stay)]))

    model = epf.StateSpaceModel(
        prior={"stay": dist.Beta(8.0, 2.0)},
        initial=lambda theta: dist.Categorical(jnp.array([0.5, 0.5])),
        transition=move,
        observation=lambda theta, x, u: dist.Normal(2.0 * x - 1.0, 1.0),
    )
    y = epf.simulate(jax.random.key(2), model, {"stay": 0.9}, 30)[1]
    filter_ = epf.bootstrap_filter(model, 2000)
    found = epf.smooth(KEY, filter_, epf.run(jax.random.key(1), filter_, y).final, y, num_paths=400)
    gold = exact.states(model, y, {"stay": np.linspace(0.001, 0.999, 41)}, jnp.arange(2))
    # a share of 400 paths is known to 0.025 at the most; five of them
    np.testing.assert_allclose(np.asarray(found.paths).mean(axis=0), gold.mean, atol=5 * 0.025)


# ------------------------------------------------------------------------------------------------------- in and out


@pytest.mark.slow
def test_theta_may_be_known():
    known = epf.bootstrap_filter(AR1, 50, theta={"phi": 0.8})
    state = epf.run(KEY, known, Y, levels=()).final
    found = epf.smooth(KEY, known, state, Y, num_paths=400)
    gold = exact.kalman_states(AR1, {"phi": 0.8}, Y)
    assert found.theta == {}
    assert np.all(np.abs(found.paths.mean(axis=0) - gold[0]) <= 5 * gold[1] / 20)


@pytest.mark.slow
def test_chains_may_have_found_theta():
    results = epf.particle_gibbs(KEY, AR1, Y, num_draws=500, num_warmup=100)
    found = epf.smooth(KEY, AR1, results.final, Y, num_paths=400)
    gold = exact.states(AR1, Y, {"phi": np.linspace(-2.5, 2.5, 101)})
    assert np.all(np.abs(found.paths.mean(axis=0) - gold.mean) <= 5 * gold.sd / 20)  # as above


def test_the_table_has_a_row_for_every_observation(smoothed):
    series = epf.from_table(
        {"day": [f"2024-01-{d:02d}" for d in range(1, T + 1)], "y": Y}, "y", time="day", unit="days"
    )
    table = smoothed.to_pandas(series)
    assert list(table.columns) == ["t", "time", "variable", "mean", "sd", "5%", "25%", "50%", "75%", "95%"]
    assert table["t"].tolist() == list(range(1, T + 1))
    np.testing.assert_array_equal(table["mean"], smoothed.x.mean)
    assert repr(smoothed) == "<Smoothed: 400 paths of 12 observations>"


def test_the_picture_has_states_data_and_what_was_known_then(run, smoothed):
    pytest.importorskip("matplotlib").use("Agg")
    (ax,) = smoothed.plot(Y, results=run).axes
    labels = ax.get_legend_handles_labels()[1]
    assert labels == ["given all: 90% band", "given all: 50% band", "given all: mean", "y, observed", "filter: mean"]
    assert len(smoothed.plot(Y, on_state=False).axes) == 2


@pytest.mark.parametrize(
    ("message", "error", "call"),
    [
        (r"^y: expected all 12 observations that the state has seen, got 5", ValueError, lambda s: (FILTER, s, Y[:5])),
        (r"^state: expected the FilterState.*Give results.final", TypeError, lambda s: (FILTER, epf.Results, Y)),
        (
            r"^filter_: expected the filter .* got int. The arguments are those of epf.smooth",
            TypeError,
            lambda s: (3, s, Y),
        ),
        (r"^y: expected shape \(T,\)", ValueError, lambda s: (FILTER, s, Y[:, None])),
        (r"Give the filter that made the state: epf.smooth", ValueError, lambda s: (AR1, s._replace(theta={}), Y)),
    ],
)
def test_what_cannot_be_smoothed_is_refused_by_name(run, message, error, call):
    filter_, state, y = call(run.final)
    state = run if state is epf.Results else state
    with pytest.raises(error, match=message):
        epf.smooth(KEY, filter_, state, y)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        (r"^num_paths: expected a positive whole number, got 0", {"num_paths": 0}),
        (r"^num_particles: .*1", {"num_particles": 1}),
        (r"^num_sweeps: expected a positive whole number", {"num_sweeps": 0}),
        (r"^levels: ", {"levels": (2.0,)}),
        (r"without epf.quasi_random", {"proposal": epf.quasi_random(epf.bootstrap())}),
    ],
)
def test_wrong_options_are_refused_by_name(run, message, options):
    with pytest.raises(ValueError, match=message):
        epf.smooth(KEY, FILTER, run.final, Y, **options)


def test_named_numbers_of_the_state_are_drawn_and_no_others():
    rows = np.linspace(0.0, 1.0, 6).reshape(2, 3)
    x = epf.Summary(rows, rows, np.stack([rows - 1, rows, rows + 1], axis=-1))
    found = Smoothed(x, rows[None], {}, rows[:, 0], np.arange(1, 3), np.array([0.05, 0.5, 0.95]), ("level", "season"))
    figure = found.plot()
    assert [ax.get_ylabel() for ax in figure.axes] == ["level", "season"]
    plt.close(figure)
    assert found.to_pandas()["variable"].tolist() == ["level", "level", "season", "season", "x[2]", "x[2]"]
