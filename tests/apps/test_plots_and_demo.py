"""Pictures and the demonstration: they are drawn, and say what they should."""

import jax
import jax.numpy as jnp
import matplotlib as mpl
import matplotlib.pyplot
import numpy as np
import pytest

mpl.use("Agg")

import epf_jax as epf
from epf_jax.apps import demo
from epf_jax.plots import plot_diagnostics, plot_pairs, plot_predictive, plot_states, plot_theta
from epf_jax.plots.figures import Curve, draw_fan, finish, focus


@pytest.mark.slow
def test_the_demo_writes_its_pictures_and_reports_z(tmp_path, capsys):
    demo.main(["--num-steps", "40", "--num-particles", "50", "--output", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert "z = (filter mean - exact mean) / exact sd" in printed
    assert (tmp_path / "out" / "theta.png").stat().st_size > 10_000
    assert (tmp_path / "out" / "diagnostics.png").stat().st_size > 10_000


@pytest.mark.parametrize(("arguments", "message"), [(["--num-steps", "0"], "positive"), (["--what"], "unrecognized")])
def test_the_demo_explains_wrong_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit):
        demo.main(arguments)
    assert message in capsys.readouterr().err


def test_the_demo_says_when_it_cannot_write(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit):
        demo.main(["--num-steps", "5", "--output", str(tmp_path / "file")])
    assert "--output: cannot write to" in capsys.readouterr().err


@pytest.mark.slow
def test_every_parameter_gets_a_panel_with_its_name():
    model = epf.models.local_level()
    truth = {"level_noise": 0.5, "observation_noise": 1.0}
    _, y = epf.simulate(jax.random.key(0), model, truth, 10)
    results = epf.run(jax.random.key(1), epf.liu_west_filter(model, 50), y)
    figure = plot_theta(results, truth=truth)
    assert [ax.get_ylabel() for ax in figure.axes] == ["level_noise", "observation_noise"]
    assert figure.axes[-1].get_xlabel() == "observations t"
    assert len(plot_diagnostics(results).axes) == 3


def test_a_run_without_quantiles_cannot_be_plotted(run):
    results = run[2]._replace(levels=run[2].levels[:0])
    with pytest.raises(ValueError, match="levels"):
        plot_theta(results)


def test_names_and_dates_are_shown_and_missing_observations_leave_gaps(run):
    _, y, results = run
    table = {"date": [f"2024-01-{day + 1:02d}" for day in range(30)], "price": np.asarray(y)}
    series = epf.from_table(table, "price", time="date", unit="days")
    for figure in (results.plot(series), plot_predictive(results, series), plot_theta(results, series)):
        assert "time" in [ax.get_xlabel() for ax in figure.axes]
    assert [ax.get_ylabel() for ax in plot_states(results, series, on_state=False).axes] == ["price", "x"]
    dates, scores = plot_diagnostics(results, series).axes[2].lines[0].get_data()
    assert str(dates[-1])[:10] == "2024-01-30"
    assert np.flatnonzero(np.isnan(scores)).tolist() == [7]


TRUTH = {"level_noise": 0.5, "observation_noise": 1.0}


@pytest.fixture(scope="module")
def run():
    """A run that recorded everything, its filter, and its data, of which one value is missing."""
    model = epf.models.local_level()
    y = epf.simulate(jax.random.key(0), model, TRUTH, 30)[1].at[7].set(jnp.nan)
    filter_ = epf.liu_west_filter(model, 60)
    return filter_, y, epf.run(jax.random.key(1), filter_, y, diagnostics=True, history=True)


@pytest.fixture(autouse=True)
def _no_figures_left():
    yield
    mpl.pyplot.close("all")


def labels(figure):
    figure.canvas.draw()  # lays it out, too: warnings of what does not fit are errors here
    return [ax.get_ylabel() for ax in figure.axes]


def test_the_overview_shows_parameters_data_state_and_health(run):
    _, y, results = run
    shown = labels(results.plot(y, truth=TRUTH, title="a run"))
    assert shown == [
        *("level_noise", "observation_noise"),
        *("y", "x", "ESS (of 60)", "distinct\nancestors", "observations"),
    ]
    plain = results._replace(diagnostics=None, history=None)
    assert labels(plain.plot(y)) == ["level_noise", "observation_noise", "x", "ESS (of 60)"]


def test_pictures_of_a_vector_say_what_each_panel_shows(run):
    _, y, results = run
    plain = results._replace(diagnostics=None, history=None)
    several = plain._replace(x=jax.tree.map(lambda a: np.stack([a, a], axis=1), results.x))
    assert labels(several.plot())[2:] == ["x[0]\n(first of 2)", "ESS (of 60)"]
    series = epf.from_table({"north": y, "south": y})
    figure = plot_states(several, series, on_state=True)
    assert labels(figure) == ["x[0], north", "x[1], south"]
    assert "observed" in [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def test_the_widest_few_bands_do_not_decide_the_limits():
    _, ax = matplotlib.pyplot.subplots()
    low, data = np.full(100, -1.0), np.linspace(-3.0, 3.0, 100)
    low[0] = -500.0
    curve = Curve("x", np.zeros(100), np.stack([low, -low], axis=1))
    draw_fan(ax, np.arange(100), curve, (0.05, 0.95))
    focus(ax, curve, data)
    matplotlib.pyplot.close(ax.figure)
    assert -4.0 < ax.get_ylim()[0] <= -3.0
    assert 3.0 <= ax.get_ylim()[1] < 4.0


def test_the_mean_is_inside_of_the_limits():
    _, ax = matplotlib.pyplot.subplots()
    mean = np.where(np.arange(100) == 50, 40.0, 0.0)
    wide = np.where(np.arange(100) == 0, 500.0, 1.0) + mean
    curve = Curve("x", mean, np.stack([-wide, wide], axis=1))
    draw_fan(ax, np.arange(100), curve, (0.05, 0.95))
    focus(ax, curve)
    matplotlib.pyplot.close(ax.figure)
    assert 40.0 <= ax.get_ylim()[1] < 50.0


def test_the_legend_names_what_the_dotted_line_is(run):
    _, y, results = run
    figure = results.plot(y, truth=TRUTH, truth_label="least squares")
    assert "least squares" in [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def test_a_fan_has_a_band_for_every_pair_of_levels(run):
    panel = plot_theta(run[2]).axes[0]
    assert [text.get_text() for text in panel.get_legend().get_texts()] == [
        "filter: 90% band",
        "filter: 50% band",
        "filter: mean",
    ]


def test_states_and_data_share_a_panel_only_where_they_are_said_to(run):
    _, y, results = run
    assert labels(plot_states(results, y)) == ["x"]
    assert labels(plot_states(results, y, on_state=False)) == ["y", "x"]
    assert labels(plot_states(results)) == ["x"]


def test_pairs_are_drawn_at_the_times_asked_for(run):
    figure = plot_pairs(run[2], at=[5, 30], truth=TRUTH)
    assert labels(figure)[:1] + labels(figure)[2:3] == ["density", "observation_noise"]
    assert [text.get_text() for text in figure.legends[0].get_texts()][:2] == ["t = 5", "t = 30"]
    with pytest.raises(ValueError, match=r"^at: the particles are kept for times 1 to 30 of the run; got 31"):
        plot_pairs(run[2], at=31)
    with pytest.raises(ValueError, match=r"^at: .*the last time, 30, alone; run it with history=True"):
        plot_pairs(run[2]._replace(history=None), at=[5])


def test_the_predictive_check_has_a_row_of_three_for_each_component(run):
    _, y, results = run
    figure = plot_predictive(results, y)
    assert labels(figure) == ["y", "observations", "PIT"]
    counts = sum(bar.get_height() for bar in figure.axes[1].patches[:10])
    assert counts == 29  # the missing value has no PIT


def test_descent_is_drawn_where_it_was_recorded(run):
    _, _, results = run
    assert len(plot_diagnostics(results).axes) == 4
    assert len(plot_diagnostics(results._replace(diagnostics=None)).axes) == 4
    bare = results._replace(diagnostics=None, history=None)
    assert len(plot_diagnostics(bare).axes) == 3
    with pytest.raises(ValueError, match=r"^results: plot_predictive draws what epf\.run\(\.\.\., diagnostics=True\)"):
        plot_predictive(bare, run[1])


def test_a_forecast_is_drawn_after_the_data(run):
    filter_, y, results = run
    ahead = epf.forecast(jax.random.key(2), filter_, results.final, 5)
    panel = ahead.plot(y, truth=jnp.zeros(5)).axes[0]
    assert panel.get_xlim() == (1.0, 35.0)
    with pytest.raises(ValueError, match=r"^truth: expected one row for each of the 5 steps, got 4"):
        ahead.plot(truth=jnp.zeros(4))
    with pytest.raises(ValueError, match=r"^y: expected observations of shape \(\) along time, got shape \(30, 1\)"):
        ahead.plot(y[:, None])


def test_what_cannot_be_drawn_is_refused_by_name(run):
    _, y, results = run
    with pytest.raises(ValueError, match=r"^y: expected the 30 observations of the run, got shape \(29,\)"):
        plot_states(results, y[1:])
    with pytest.raises(ValueError, match=r"^truth: expected the prior's structure"):
        results.plot(truth={"level_noise": 0.5})
    with pytest.raises(TypeError, match=r"^y: expected the 30 observations .*True values go by name, truth="):
        plot_theta(results, TRUTH)
    batch = jax.tree.map(lambda a: a[None], results)
    with pytest.raises(ValueError, match=r"^results: plot_overview looks at one run, and these are 1"):
        batch.plot()


@pytest.mark.parametrize("days", [0.1, 2.9, 20.0, 85.0, 500.0, 1050.0, 1200.0, 20_000.0])
def test_dates_of_hours_to_decades_have_a_few_ticks_and_no_warning(days):
    figure, ax = mpl.pyplot.subplots()
    ax.plot(np.datetime64("2020-01-03T05:07") + (np.linspace(0, days, 9) * 86400e3).astype("timedelta64[ms]"), range(9))
    finish(ax)
    figure.canvas.draw()
    assert 2 <= len(ax.get_xticks()) <= 7
    mpl.pyplot.close(figure)
