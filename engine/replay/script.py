"""A story in the coarser tokens of a replay: one of its tokens stands for `grain` tokens of the model.

Blocks stay what they are: one of `block_size` tokens is one of `block_size ÷ grain` coarse ones, all of them the
block's symbol. So which prompts begin alike, and how many blocks each needs, is the same in every grain.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.replay.story import Call, Output

END = 0  # the coarse token that ends an output


@dataclass(slots=True)
class Part:
    """A request in coarse tokens."""

    call: Call
    prompt: list[int]
    outputs: list[list[int] | None]  # what each output will say, the last token END; None: nobody knows how long it is

    def token(self, index: int, position: int) -> int:
        """Return what output `index` says at `position`."""
        output = self.outputs[index] if index < len(self.outputs) else None
        return output[position] if output is not None and position < len(output) else self.call.own_symbol


def render(call: Call, block_size: int, grain: int) -> Part:
    """Return a request in tokens of `grain`, which divides `block_size`."""
    width = block_size // grain
    num_prompt = coarse(call.num_prompt, grain)
    first = call.outputs.get(0)
    prompt: list[int] = []
    for symbol in call.symbols:
        prompt += [symbol] * width
    while len(prompt) < num_prompt:
        prompt += [_symbol(call, first, len(prompt) // width)] * min(width, num_prompt - len(prompt))
    del prompt[num_prompt:]
    return Part(call, prompt, [_say(call, call.outputs.get(index), grain, width) for index in range(call.num_outputs)])


def coarse(num_tokens: int, grain: int) -> int:
    """Return the coarse tokens that hold `num_tokens`."""
    return -(-num_tokens // grain)


def coarse_output(num_prompt: int, num_output: int, grain: int) -> int:
    """Return the coarse tokens of an output, so that prompt and output together come to as many blocks as they do."""
    return max(1, coarse(num_prompt + num_output, grain) - coarse(num_prompt, grain))


def _say(call: Call, output: Output | None, grain: int, width: int) -> list[int] | None:
    if output is None or output.num_tokens is None:
        return None
    start = coarse(call.num_prompt, grain)
    end = start + coarse_output(call.num_prompt, output.num_tokens, grain)
    said: list[int] = []
    while start + len(said) < end - 1:
        at = start + len(said)
        said += [_symbol(call, output, at // width)] * min(width - at % width, end - 1 - at)
    return [*said, END]


def _symbol(call: Call, output: Output | None, block: int) -> int:
    """Return the symbol of a block behind the prompt's known ones."""
    names: Sequence[int] = output.symbols if output is not None else ()
    at = block - (output.first_block if output is not None else 0)
    return names[at] if 0 <= at < len(names) else call.own_symbol
