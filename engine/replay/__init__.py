"""What limits would have done: the last minutes once more, by the real scheduler and memory, and no machine."""
