"""Reference kernels: plain torch, any device, written to be read; the oracle of the other backends."""
