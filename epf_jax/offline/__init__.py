"""What needs the whole series: chains, smoothing, hyper-parameters by gradient ascent."""
