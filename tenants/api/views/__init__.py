"""Views of the management API, one noun a file."""
