"""How long a running stream may wait for its next token, by service class: what the size of prefill chunks obeys."""

import math

INTER_TOKEN_SECONDS = (0.1, 0.25, math.inf)  # interactive, standard; a batch stream waits as long as it takes
MIN_CHUNK_TOKENS = 32  # of all prefills in a step together: what waits makes progress whatever the targets
EVERY_STEPS = 8  # steps of decodes alone are timed once in so many: they teach little, and all of them cost time
