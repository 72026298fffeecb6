"""What is asked of a worker whose tenants have an obvious habit."""

from random import Random

from engine.train.asked import Ask


def short_ones_return(random: Random, num_chats: int = 400) -> list[Ask]:
    """Return chats of which those of two blocks go on a minute later, and those of twenty never."""
    asks: list[Ask] = []
    fresh, at = 1, 0.0
    for _ in range(num_chats):
        at += random.expovariate(0.1)
        length = random.choice((2, 20))
        blocks = list(range(fresh, fresh + length))
        fresh += length + 1
        asks.append(Ask(at, "tenant minnow", blocks, []))
        if length == 2:
            asks.append(Ask(at + 60, "tenant minnow", [*blocks, fresh - 1], []))
    return sorted(asks, key=lambda ask: ask.at)


def no_habit(random: Random, num_prompts: int = 400) -> list[Ask]:
    """Return prompts that are alike in nothing, and of which any may be asked for again."""
    asks: list[Ask] = []
    for number in range(num_prompts):
        topic = random.randrange(num_prompts // 4)
        asks.append(Ask(float(number), "tenant minnow", [topic * 10 + place for place in range(8)], []))
    return asks
