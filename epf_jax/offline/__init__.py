"""Methods that need the whole series: Markov chains, smoothing, hyper-parameters by gradient ascent."""
