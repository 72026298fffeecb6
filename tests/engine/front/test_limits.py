"""The hard limit in a whole worker: real front, real core, the peaks that it reports for every step."""

import asyncio

from engine.protocol import pb
from tests.engine.front.client import POLICY, ControlStream, GenerateStream, channel
from tests.engine.front.conftest import Run, Tokenize
from tests.engine.front.process import WorkerProcess

WHALES = 24
OUTPUT_TOKENS = 240


def limits(version: int, whale_bytes: int) -> pb.PolicyPush:
    """Return a policy in which the whale has so many bytes and the minnow all it wants."""
    whale = pb.TenantPolicy()
    whale.CopyFrom(POLICY.tenants[0])
    whale.tenant, whale.kv_hard_bytes = "whale", whale_bytes
    return pb.PolicyPush(version=version, snapshot=True, tenants=[POLICY.tenants[0], whale])


async def peaks_until_idle(control: ControlStream) -> list[int]:
    """Return the whale's highest use between any two statistics, until it has no request left."""
    peaks: list[int] = []
    while True:
        event = await control.until(lambda event: event.HasField("stats"))
        for use in event.stats.tenants:
            if use.tenant == "whale":
                peaks.append(use.kv_peak_bytes)
                if use.running + use.queued == 0 and use.kv_bytes == use.kv_cached_bytes:
                    return peaks


def whale_peak(event: pb.ControlEvent) -> int:
    """Return the whale's highest use since the last statistics, 0 where an event does not say."""
    return max((use.kv_peak_bytes for use in event.stats.tenants if use.tenant == "whale"), default=0)


async def submit(stream: GenerateStream, tenant: str, prompt: list[int], max_tokens: int) -> int:
    """Submit a request of a tenant that runs to its last token."""
    return await stream.submit(prompt, tenant=tenant, sampling={"max_tokens": max_tokens, "ignore_eos": True})


def test_use_never_passes_the_limit_and_its_queue_holds_up_nobody(
    engine: WorkerProcess, run: Run, tokenize: Tokenize
) -> None:
    """A flood that needs eight times the whale's limit: no peak above it, not once lowered, all end, minnows go by."""
    prompt = tokenize("the tenant holds the block and the block holds the tokens")

    async def story() -> None:
        async with channel(engine.address) as client:
            card = await client.describe()
            need = -(-(len(prompt) + OUTPUT_TOKENS) // card.block_size) * card.block_bytes
            high, low = 3 * need, 2 * need
            control, stream = client.control(), client.generate()
            await control.push(limits(101, high))
            await control.until(lambda event: event.applied.version == 101)
            await control.until(lambda event: event.HasField("stats"))  # the peak until now is another test's
            # Each begins in its own way: what they could share would need no room.
            whales = [await submit(stream, "whale", [index + 3, *prompt[1:]], OUTPUT_TOKENS) for index in range(WHALES)]
            await stream.tokens(whales[0], 10)
            for _ in range(5):
                minnow = await submit(stream, "minnow", prompt, 8)
                assert (await stream.end(minnow)).finished.reason == pb.FINISH_REASON_LENGTH
            assert not stream.events[whales[-1]]  # the flood still waits, for its own limit
            before = await control.until(lambda event: whale_peak(event) > low)
            assert whale_peak(before) <= high
            await control.push(limits(102, low))
            await control.until(lambda event: event.applied.version == 102)
            for _ in range(2):  # their peaks may be from before the change
                await control.until(lambda event: event.HasField("stats"))
            watching = asyncio.create_task(peaks_until_idle(control))
            for whale in whales:
                finished = (await stream.end(whale)).finished
                assert finished.usage.completion_tokens == len(stream.token_ids(whale)) == OUTPUT_TOKENS
            peaks = await watching
            assert need <= max(peaks) <= low
            control.call.cancel()

    run(story())
