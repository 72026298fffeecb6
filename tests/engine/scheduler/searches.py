"""Beam searches of tests: the prompt that they have in common, and what each of them must find."""

from engine.request import FinishReason, SequenceId
from tests.engine.world import Output, World

PROMPT = [(7 * place) % 900 for place in range(42)]
STOPS = frozenset(range(0, 1000, 9))


def outputs_of(world: World, request: SequenceId) -> list[Output]:
    """Return the keys of a request's outputs."""
    return [request, *((request, index) for index in range(1, world.requests[request].n))]


def assert_found(world: World, *requests: SequenceId) -> None:
    """Check that searches have ended by themselves, with all outputs, exact."""
    for request in requests:
        for output in outputs_of(world, request):
            assert world.finished[output] in (FinishReason.STOP, FinishReason.LENGTH)
            assert not world.outputs[output][-1].message
            assert world.tokens[output]
            world.assert_exact(output)
