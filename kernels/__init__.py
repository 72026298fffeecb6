"""Kernels of the engine: one signature an op, one implementation a backend. Imports torch, triton and nothing of ours."""
