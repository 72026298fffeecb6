"""A worker without a model, to measure the gateway alone: `python -m bench.stub_engine`.

It speaks the worker protocol: it describes itself with a real tokenizer, takes every policy and says so, answers each
request with one token a step, and reports usage for each. A step comes every two milliseconds while anything runs.
Reads ENGINE_ADDRESS, ENGINE_TOKEN, ENGINE_ANNOUNCE_URL, ENGINE_MODEL (for its tokenizer), ENGINE_MODEL_NAME and
ENGINE_WORKER_ID.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from engine.front.announce import Announcement, Announcer
from engine.front.auth import TokenInterceptor
from engine.protocol import pb, rpc
from tests.engine.tiny_model import CHAT_TEMPLATE

STEP_SECONDS = 0.002
REPORT_SECONDS = 0.25
_VOCAB, _CONTEXT, _BLOCK_BYTES, _NUM_BLOCKS = 384, 8192, 16384, 65536
_TEXT = " block"
_MOST_TOKENS = 16  # where a request names no maximum


class Live:
    """One request."""

    __slots__ = ("left", "started", "submit", "total")

    def __init__(self, submit: pb.Submit) -> None:
        self.submit = submit
        self.total = self.left = submit.sampling.max_tokens or _MOST_TOKENS
        self.started = time.time()


class StubEngine(rpc.EngineServicer):
    """Every request is admitted at once and ends at its length."""

    def __init__(self, model: str, worker_id: str, tokenizer_json: bytes) -> None:
        self._worker_id = worker_id
        self._records: list[pb.UsageRecord] = []
        self._sequence = 0
        self.card = pb.ModelCard(
            worker_id=worker_id,
            model=model,
            digest="5" * 64,
            tokenizer_json=tokenizer_json,
            chat_template=CHAT_TEMPLATE,
            vocab_size=_VOCAB,
            max_context_tokens=_CONTEXT,
            block_size=16,
            block_bytes=_BLOCK_BYTES,
            num_blocks=_NUM_BLOCKS,
            dtype="float32",
            device="cpu",
        )

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.ModelCard:  # noqa: N802
        """Return the card."""
        return self.card

    async def Generate(self, request_iterator: AsyncIterator[pb.Command], context: Any) -> None:  # noqa: N802
        """Serve one connection."""
        live: dict[int, Live] = {}
        fresh: list[int] = []
        waiting = asyncio.Event()

        async def read() -> None:
            async for command in request_iterator:
                if command.HasField("submit"):
                    live[command.submit.stream] = Live(command.submit)
                    fresh.append(command.submit.stream)
                    waiting.set()
                elif command.HasField("cancel"):
                    live.pop(command.cancel.stream, None)

        reading = asyncio.create_task(read())
        try:
            while not reading.done():
                if not live:
                    waiting.clear()
                    await asyncio.wait({reading, asyncio.ensure_future(waiting.wait())}, return_when="FIRST_COMPLETED")
                events = [pb.Event(stream=one, admitted=pb.Admitted(max_tokens=live[one].total)) for one in fresh]
                fresh.clear()
                for stream, one in list(live.items()):
                    events.append(pb.Event(stream=stream, delta=pb.Delta(token_ids=(7,), text=_TEXT)))
                    one.left -= 1
                    if not one.left:
                        events.append(pb.Event(stream=stream, finished=self._end(one)))
                        del live[stream]
                if events:
                    await context.write(pb.StepEvents(events=events))
                if live:
                    await asyncio.sleep(STEP_SECONDS)
        finally:
            reading.cancel()

    def _end(self, one: Live) -> pb.Finished:
        submit, num_prompt = one.submit, len(one.submit.token_ids)
        self._sequence += 1
        self._records.append(
            pb.UsageRecord(
                sequence=self._sequence,
                request_id=submit.request_id,
                tenant=submit.tenant,
                project=submit.project,
                key=submit.key,
                model=self.card.model,
                worker_id=self._worker_id,
                prompt_tokens=num_prompt,
                completion_tokens=one.total,
                started_at=one.started,
                finished_at=time.time(),
                finish_reason=pb.FINISH_REASON_LENGTH,
            )
        )
        usage = pb.Usage(prompt_tokens=num_prompt, completion_tokens=one.total)
        return pb.Finished(reason=pb.FINISH_REASON_LENGTH, usage=usage)

    async def Control(self, request_iterator: AsyncIterator[pb.ControlCommand], context: Any) -> None:  # noqa: N802
        """Take policies, acknowledge them, and report usage in batches."""
        kv_bytes = _NUM_BLOCKS * _BLOCK_BYTES
        hello = pb.Hello(worker_id=self._worker_id, kv_bytes=kv_bytes, block_bytes=_BLOCK_BYTES)
        await context.write(pb.ControlEvent(hello=hello))
        writes = asyncio.Lock()

        async def report() -> None:
            while True:
                await asyncio.sleep(REPORT_SECONDS)
                records, self._records = self._records, []
                if records:
                    async with writes:
                        await context.write(pb.ControlEvent(usage=pb.UsageBatch(records=records)))

        reporting = asyncio.create_task(report())
        try:
            async for command in request_iterator:
                if command.HasField("policy"):
                    version, epoch = command.policy.version, command.policy.epoch
                    async with writes:
                        for event in (
                            pb.ControlEvent(applied=pb.Applied(version=version, epoch=epoch, at=time.time())),
                            pb.ControlEvent(settled=pb.Settled(version=version, epoch=epoch, at=time.time())),
                        ):
                            await context.write(event)
        finally:
            reporting.cancel()


async def serve() -> None:
    """Serve until the process is ended."""
    env = os.environ
    address, model, worker_id = env["ENGINE_ADDRESS"], env["ENGINE_MODEL_NAME"], env["ENGINE_WORKER_ID"]
    engine = StubEngine(model, worker_id, (Path(env["ENGINE_MODEL"]) / "tokenizer.json").read_bytes())
    server = grpc.aio.server(interceptors=[TokenInterceptor(env["ENGINE_TOKEN"])])
    rpc.add_EngineServicer_to_server(engine, server)
    server.add_insecure_port(address)
    await server.start()
    Announcer(env["ENGINE_ANNOUNCE_URL"], env["ENGINE_TOKEN"]).start(
        Announcement(
            worker_id=worker_id,
            address=address,
            model=model,
            digest=engine.card.digest,
            kv_bytes=_NUM_BLOCKS * _BLOCK_BYTES,
            block_bytes=_BLOCK_BYTES,
            max_context=_CONTEXT,
        )
    )
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve())
