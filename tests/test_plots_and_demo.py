"""Pictures and the demonstration: they are drawn, and say what they should."""

import jax
import jax.numpy as jnp
import matplotlib as mpl
import pytest

mpl.use("Agg")

import epf_jax as epf
from epf_jax import demo
from epf_jax.plots import plot_diagnostics, plot_theta


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


def test_every_parameter_gets_a_panel_with_its_name():
    model = epf.models.local_level()
    truth = {"level_noise": 0.5, "observation_noise": 1.0}
    _, y = epf.simulate(jax.random.key(0), model, truth, 10)
    results = epf.run(jax.random.key(1), epf.liu_west_filter(model, 50), y)
    figure = plot_theta(results, truth=truth)
    assert [ax.get_ylabel() for ax in figure.axes] == ["level_noise", "observation_noise"]
    assert figure.axes[-1].get_xlabel() == "observations t"
    assert len(plot_diagnostics(results).axes) == 3
    mpl.pyplot.close("all")


def test_a_run_without_quantiles_cannot_be_plotted():
    model = epf.models.ar1()
    results = epf.run(jax.random.key(1), epf.liu_west_filter(model, 20), jnp.zeros(3), levels=())
    with pytest.raises(ValueError, match="levels"):
        plot_theta(results)
