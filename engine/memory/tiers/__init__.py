"""Where blocks live that have left the device pool: one file a tier."""
