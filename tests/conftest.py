"""What every test may use; each folder's own fixtures lie in its own conftest."""
