"""The worker's block trace: what was asked of it in the last minutes, by block, without a word of any prompt."""
