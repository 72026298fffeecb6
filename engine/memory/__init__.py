"""KV memory: which block belongs to which sequence and to whose account. Plain data, no tensors."""
