"""A filter over data: run, replicate, sweep, results, diagnosis, forecast, checkpoints, export."""
