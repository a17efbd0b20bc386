"""One cloud of particles: weigh, propose, resample, summarise, spread over devices."""
