"""Which cached block goes first: policies as small key functions, and the guard that compares them with plain LRU."""
