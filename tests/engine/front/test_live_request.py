"""One running request."""

import time
from typing import cast

import pytest

from engine.front.connection import Stream
from engine.front.live_request import LiveRequest
from engine.front.meter import Metered
from engine.front.outputs import Outputs
from engine.front.table import Counters


@pytest.mark.parametrize("turned", [-86_400.0, 0.0, 86_400.0])
def test_time_goes_on_when_the_clock_is_set(turned: float) -> None:
    """A request that runs while somebody sets the clock ends after its start, by the seconds that it took."""
    started_at = time.time() - turned  # what the clock said before it was turned
    request = LiveRequest(
        handle=1,
        stream=cast(Stream, None),  # no part of this
        metered=cast(Metered, None),
        counters=Counters(started_at=started_at),
        outputs=cast(Outputs, None),
        prompt_tokens=1,
        submitted=time.monotonic() - 3.0,
    )
    assert 3.0 <= request.moment() - started_at < 30.0
