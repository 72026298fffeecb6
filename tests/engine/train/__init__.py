"""Tests of training the reuse predictor."""
