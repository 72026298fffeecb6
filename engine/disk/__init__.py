"""Blocks on disk (L3): a store of slabs by key that outlives the process, and that nothing waits for."""
