"""Simulation-based calibration: exact methods stay inside the band, those known to be miscalibrated leave it."""

import numpy as np
import pytest

from benchmarks.accuracy import calibration


@pytest.mark.filterwarnings("ignore:The chains disagree", "ignore:The .* draws are worth")  # of one in two hundred
@pytest.mark.slow
@pytest.mark.parametrize("label", calibration.EXACT)
def test_exact_methods_are_calibrated(label):
    # 99% of uniform histograms stay inside the band; the seeds are fixed
    assert calibration.is_calibrated(calibration.histogram(label))


@pytest.mark.slow
@pytest.mark.parametrize("label", ["SIR", "Liu-West"])
def test_methods_known_to_be_miscalibrated_are_shown_to_be(label):
    assert label in calibration.KNOWN_TO_FAIL
    assert not calibration.is_calibrated(calibration.histogram(label))


def test_the_band_catches_a_posterior_that_is_too_narrow():
    rng = np.random.default_rng(0)
    theta = rng.normal(size=400)
    for width, fine in ((1.0, True), (0.6, False)):  # theta given data is N(0, 1): its ranks among wrong draws
        draws = width * rng.normal(size=(400, calibration.NUM_DRAWS))
        ranks = np.sum(draws < theta[:, None], axis=1)
        counts = np.histogram(ranks, bins=np.linspace(0, calibration.NUM_DRAWS + 1, calibration.NUM_BINS + 1))[0]
        assert calibration.is_calibrated(counts) == fine
    low, high = calibration.band(200)
    assert 0 < low < 200 / calibration.NUM_BINS < high
