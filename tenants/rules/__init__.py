"""What values may be: pure checks that raise `Invalid` with the field and the fix."""
