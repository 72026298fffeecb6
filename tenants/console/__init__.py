"""A tenant's pages: overview, keys, playground."""
