"""The management API: `/api/v1/`."""
