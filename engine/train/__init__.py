"""Trains the reuse predictor from a worker's own trace: `python -m engine.train`."""
