"""Sign-in, and the operator's pages with their live feed."""
