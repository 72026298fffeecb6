"""Engine workers as the control plane sees them."""
