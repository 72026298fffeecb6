"""The Django project and everything that faces the network."""
