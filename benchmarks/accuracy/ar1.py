"""Linear AR(1): Storvik's filter against the Kalman evidence on a grid of theta."""

import jax.numpy as jnp

import epf_jax as epf
from benchmarks.accuracy.judge import Exam
from epf_jax import exact


def posterior(model, y):
    found = exact.kalman(model, y, {"phi": jnp.linspace(-0.2, 1.2, 71)})
    return exact.kalman(model, y, exact.axes_around(found))


def main():
    exam = Exam("ar1", epf.models.ar1, {"phi": 0.8}, posterior)
    for x64 in (False, True):
        exam.judge(
            "Storvik, fully adapted, N = 1000", lambda m: epf.storvik_filter(m, 1000), bars={"z rms": 0.15}, x64=x64
        )
    exam.judge("Storvik, bootstrap, N = 1000", lambda m: epf.storvik_filter(m, 1000, proposal=epf.bootstrap()))
    exam.judge(
        "Storvik, bootstrap, multinomial, N = 1000",
        lambda m: epf.storvik_filter(m, 1000, proposal=epf.bootstrap(), resample=epf.multinomial),
    )
    exam.judge(
        "EPF Taylor 1, fully adapted, 1 MH, N = 1000",
        lambda m: epf.extended_parameter_filter(m, 1000, statistic=epf.taylor(m, 1)),
    )
    exam.report()


if __name__ == "__main__":
    main()
