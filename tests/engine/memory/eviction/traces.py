"""Small traces of prompts with known habits. Block ids are unique to their prefix, as in a real trace."""

import heapq
from random import Random

from engine.memory.eviction.simulate import Prompt


def chats(random: Random, num_prompts: int) -> list[Prompt]:
    """Return chats as people have them: most end after one turn, the others go on, a minute or two between turns."""
    trace: list[Prompt] = []
    due: list[tuple[float, int, list[int]]] = []
    fresh, arrival, number = 1, 0.0, 0
    while len(trace) < num_prompts:
        arrival += random.expovariate(1.0)
        heapq.heappush(due, (arrival, number, [0]))
        number += 1
        while due and due[0][0] <= arrival and len(trace) < num_prompts:
            at, _, blocks = heapq.heappop(due)
            turn = len(blocks) > 1
            grown = blocks + list(range(fresh, fresh + random.randint(3, 12)))
            fresh += 12
            trace.append(Prompt(at, grown))
            if random.random() < (0.75 if turn else 0.25):
                number += 1
                heapq.heappush(due, (at + random.uniform(40, 140), number, grown))
    return trace


def fashions(random: Random, num_prompts: int, *, length: int = 200) -> list[Prompt]:
    """Return prompts of few topics that are asked for again and again, and all at once never more: old hits mislead."""
    trace = []
    for number in range(num_prompts):
        topic = number // length * 1000 + random.randint(0, 29)
        trace.append(Prompt(float(number) / 10, [topic * 10 + place for place in range(5)]))
    return trace


def anything(random: Random, num_prompts: int) -> list[Prompt]:
    """Return walks in a random tree."""
    trace = []
    for number in range(num_prompts):
        node, blocks = 1, []
        for _ in range(random.randint(1, 6)):
            node = node * 3 + random.choice((0, 0, 1, 2))
            blocks.append(node)
        trace.append(Prompt(number * random.uniform(0.5, 1.0), blocks))
    return sorted(trace, key=lambda prompt: prompt.at)
