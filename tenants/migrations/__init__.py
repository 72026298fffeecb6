"""Schema of the domain: every migration is named and reversible."""
