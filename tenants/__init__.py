"""The domain: tenants, projects, members, keys, policy, usage, audit. Imports nothing of `gateway` or `engine`."""
