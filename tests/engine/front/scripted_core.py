"""A core that does what the prompt says: it speaks the link's frames, so that crashes happen at a chosen token.

    prompt = [mode, count, ...]
    ECHO    emit the tokens after the first two, one a step, then finish with `stop`
    COUNT   emit `count` tokens (65, 66, ... as ids), one a step, then finish with `length`
    HANG    emit `count` tokens, then keep the request until it is cancelled
    DIE     emit `count` tokens, then die of SIGKILL
    REFUSE  refuse with kv_limit
    FLOOD   emit `count` tokens every step until cancelled
    QUEUE   never admit it

Every running request holds one block, so that a leak shows in the statistics.
"""

import argparse
import os
import signal
import sys
import time
from dataclasses import dataclass, field

import zmq

from engine import ipc

ECHO, COUNT, HANG, DIE, REFUSE, FLOOD, QUEUE = range(1, 8)
BLOCKS, BLOCK_BYTES = 4096, 1024
_STEP_MS = int(os.environ.get("SCRIPTED_STEP_MS", "1"))


@dataclass
class _Request:
    frame: ipc.SubmitFrame
    emitted: int = 0
    blocks: int = 0

    @property
    def mode(self) -> int:
        return self.frame.prompt[0]

    @property
    def count(self) -> int:
        return self.frame.prompt[1]


@dataclass
class _Core:
    socket: "zmq.Socket[bytes]"
    requests: dict[int, _Request] = field(default_factory=dict)
    step: int = 0
    output_tokens: int = 0
    stats_at: float = 0.0

    def take(self, frame: ipc.ToCore) -> None:
        match frame:
            case ipc.SubmitFrame():
                self.requests[frame.handle] = _Request(frame)
            case ipc.CancelFrame():
                outputs = [
                    ipc.Output(handle=handle, finish_reason=frame.reason, kv_byte_seconds=7.0)
                    for handle in frame.handles
                    if self.requests.pop(handle, None) is not None
                ]
                self.send(ipc.StepFrame(step=self.step, outputs=outputs))
            case ipc.PolicyFrame():
                applied = ipc.AppliedFrame(version=frame.version, epoch=frame.epoch, at=time.time(), step=self.step)
                self.send(applied)
            case ipc.StopFrame():
                sys.exit(0)

    def run_step(self) -> None:
        outputs = [output for output in map(self.advance, list(self.requests.values())) if output is not None]
        if outputs:
            self.step += 1
            self.send(ipc.StepFrame(step=self.step, outputs=outputs))

    def advance(self, request: _Request) -> ipc.Output | None:
        frame = request.frame
        if request.mode == QUEUE:
            return None
        if request.mode == REFUSE:
            del self.requests[frame.handle]
            return ipc.Output(
                handle=frame.handle, refusal_code="kv_limit", message="needs 9 of 4 bytes", field="messages"
            )
        first = not request.blocks
        request.blocks = 1
        tokens = self.tokens(request)
        if not tokens and not first:
            return None
        request.emitted += len(tokens)
        self.output_tokens += len(tokens)
        return ipc.Output(
            handle=frame.handle,
            admitted_max_tokens=1000 if first else 0,
            cached_tokens=1 if first else 0,
            queue_seconds=0.25 if first else 0.0,
            token_ids=tokens,
            finish_reason=self.finish(request),
            kv_byte_seconds=float(request.emitted),
        )

    def tokens(self, request: _Request) -> list[int]:
        if request.mode == FLOOD:
            return [65] * request.count
        if request.mode == ECHO:
            return request.frame.prompt[2 + request.emitted : 3 + request.emitted]
        if request.emitted < request.count:
            return [65 + request.emitted % 26]
        if request.mode == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        return []

    def finish(self, request: _Request) -> str:
        done = {ECHO: len(request.frame.prompt) - 2, COUNT: request.count}.get(request.mode)
        if request.emitted != done:
            return ""
        del self.requests[request.frame.handle]
        return "stop" if request.mode == ECHO else "length"

    def send_stats(self) -> None:
        if time.monotonic() < self.stats_at:
            return
        self.stats_at = time.monotonic() + 0.25
        open_blocks = sum(request.blocks for request in self.requests.values())
        self.send(
            ipc.StatsFrame(
                at=time.time(),
                step=self.step,
                blocks_total=BLOCKS,
                blocks_free=BLOCKS - open_blocks,
                blocks_open=open_blocks,
                blocks_sealed=0,
                running=open_blocks,
                queued=len(self.requests) - open_blocks,
                prompt_tokens=0,
                output_tokens=self.output_tokens,
                num_preemptions=0,
                tenants=[],
            )
        )

    def send(self, frame: ipc.ToFront) -> None:
        self.socket.send(ipc.encode(frame))


def main() -> None:
    """Serve one front until it says stop or is gone."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    endpoint = parser.parse_args().endpoint
    front = int(endpoint.split("-")[-2])  # asking for the parent's id would be too late if the front is gone already
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.SNDHWM, 0)
        socket.connect(endpoint)
        core = _Core(socket)
        core.send(
            ipc.ReadyFrame(
                num_blocks=BLOCKS,
                block_size=16,
                block_bytes=BLOCK_BYTES,
                dtype="float32",
                device="cpu",
                kernel_backend="scripted",
                pid=os.getpid(),
            )
        )
        while os.getppid() == front:
            while socket.poll(_STEP_MS):
                core.take(ipc.decode_to_core(socket.recv()))
            core.run_step()
            core.send_stats()


if __name__ == "__main__":
    main()
