"""A core that does what the prompt says: it speaks the link's frames, so that crashes happen at a chosen token.

    prompt = [mode, count, ...]
    ECHO    emit the tokens after the first two, one a step, then finish with `stop`
    COUNT   emit `count` tokens (65, 66, ... as ids), one a step, then finish with `length`
    HANG    emit `count` tokens, then keep the request until it is cancelled
    DIE     emit `count` tokens, then die of SIGKILL
    REFUSE  refuse with kv_limit
    FLOOD   emit `count` tokens every step until cancelled
    QUEUE   never admit it

Each of a request's `n` outputs does all of it, with a log-probability of -1 a token for the middle one and less for
those further from it. A beam search counts `width` tokens a step, with HANG for ever, else in `count` steps; then it
sends `n` outputs of `count` tokens, the first of `A`, the next of `B` and so on.

Every turn of a session leaves it there, with a token for each of its prompt, until it is erased. A tenant called
`silent` gets no answer to what it asks of its sessions; one called `deadly` kills the core with it.

Every running output holds one block, so that a leak shows in the statistics; so do the share groups of the policy.
"""

import argparse
import os
import signal
import sys
import time
from dataclasses import dataclass, field

import msgspec
import zmq

from engine import ipc

ECHO, COUNT, HANG, DIE, REFUSE, FLOOD, QUEUE = range(1, 8)
BLOCKS, BLOCK_BYTES = 4096, 1024
_STEP_MS = int(os.environ.get("SCRIPTED_STEP_MS", "1"))
_LOADING_SECONDS = float(os.environ.get("SCRIPTED_LOADING_SECONDS", "0"))


@dataclass
class _Output:
    frame: ipc.SubmitFrame
    index: int = 0
    emitted: int = 0
    blocks: int = 0

    @property
    def mode(self) -> int:
        return self.frame.prompt[0]

    @property
    def count(self) -> int:
        return self.frame.prompt[1]

    @property
    def logprob(self) -> float:
        return -1.0 - abs(self.index - self.frame.n // 2)


@dataclass
class _Core:
    socket: "zmq.Socket[bytes]"
    outputs: dict[tuple[int, int], _Output] = field(default_factory=dict)  # by handle and index
    share_groups: dict[str, ipc.PolicyShareGroup] = field(default_factory=dict)
    sessions: dict[tuple[str, str], ipc.SessionState] = field(default_factory=dict)  # the last used one last
    step: int = 0
    output_tokens: int = 0
    stats_at: float = 0.0

    def take(self, frame: ipc.ToCore) -> None:
        match frame:
            case ipc.SubmitFrame():
                for index in range(1 if frame.beam_width else frame.n):
                    self.outputs[frame.handle, index] = _Output(frame, index)
            case ipc.CancelFrame():
                gone = [
                    key
                    for key in self.outputs
                    if key[0] in frame.handles and (frame.index < 0 or key[1] == frame.index)
                ]
                self.send(ipc.StepFrame(step=self.step, outputs=[self.cancel(key, frame.reason) for key in gone]))
            case ipc.PolicyFrame():
                if frame.snapshot:
                    self.share_groups.clear()
                for name in frame.removed_share_groups:
                    self.share_groups.pop(name, None)
                self.share_groups |= {group.name: group for group in frame.share_groups}
                applied = ipc.AppliedFrame(version=frame.version, epoch=frame.epoch, at=time.time(), step=self.step)
                self.send(applied)
                self.send(ipc.SettledFrame(version=frame.version, epoch=frame.epoch, at=applied.at))
            case ipc.SessionQueryFrame() | ipc.SessionChangeFrame() if frame.tenant != "silent":
                self.send(self.answer(frame))
            case ipc.PrefetchFrame():
                key = (frame.tenant, frame.session)
                if key in self.sessions:
                    self.sessions[key] = msgspec.structs.replace(self.sessions[key], device_bytes=BLOCK_BYTES)
            case ipc.StopFrame():
                sys.exit(0)

    def answer(self, frame: ipc.SessionQueryFrame | ipc.SessionChangeFrame) -> ipc.SessionsFrame:
        if frame.tenant == "deadly":
            os.kill(os.getpid(), signal.SIGKILL)
        own = {name: one for (tenant, name), one in self.sessions.items() if tenant == frame.tenant}
        found = [one for name, one in reversed(own.items()) if frame.session in ("", name)]
        if isinstance(frame, ipc.SessionQueryFrame):
            found = [one for one in found if not frame.before or one.last_used_at < frame.before][: frame.limit]
        elif found and frame.action == "erase":
            del self.sessions[frame.tenant, frame.session], own[frame.session]
        elif found:
            found = [msgspec.structs.replace(found[0], pinned=frame.action == "pin")]
            self.sessions[frame.tenant, frame.session] = found[0]
        return ipc.SessionsFrame(number=frame.number, sessions=found, num_sessions=len(own))

    def keep(self, frame: ipc.SubmitFrame) -> None:
        now, before = time.time(), self.sessions.pop((frame.tenant, frame.session), None)
        self.sessions[frame.tenant, frame.session] = ipc.SessionState(
            session=frame.session,
            num_tokens=len(frame.prompt),
            device_bytes=0,
            host_bytes=2 * BLOCK_BYTES,
            disk_bytes=3 * BLOCK_BYTES,
            num_turns=1 if before is None else before.num_turns + 1,
            created_at=now if before is None else before.created_at,
            last_used_at=now,
            expires_at=now + frame.session_seconds,
            pinned=False,
            active=False,
        )

    def cancel(self, key: tuple[int, int], reason: str) -> ipc.Output:
        del self.outputs[key]
        return ipc.Output(handle=key[0], index=key[1], finish_reason=reason, kv_byte_seconds=7.0)

    def run_step(self) -> None:
        outputs = []
        for output in list(self.outputs.values()):
            outputs += self.search(output) if output.frame.beam_width else self.advance(output)
        if outputs:
            self.step += 1
            self.send(ipc.StepFrame(step=self.step, outputs=outputs))

    def advance(self, output: _Output) -> list[ipc.Output]:
        frame = output.frame
        if output.mode == QUEUE:
            return []
        if output.mode == REFUSE:
            self.outputs = {key: other for key, other in self.outputs.items() if key[0] != frame.handle}
            refused = ipc.Output(
                handle=frame.handle, refusal_code="kv_limit", message="needs 9 of 4 bytes", field="messages"
            )
            return [refused] if output.index == 0 else []
        first = not output.blocks
        output.blocks = 1
        tokens = self.tokens(output)
        if not tokens and not first:
            return []
        output.emitted += len(tokens)
        self.output_tokens += len(tokens)
        admits = first and output.index == 0
        news = ipc.Output(
            handle=frame.handle,
            index=output.index,
            admitted_max_tokens=1000 if admits else 0,
            cached_tokens=1 if admits else 0,
            queue_seconds=0.25 if admits else 0.0,
            token_ids=tokens,
            finish_reason=self.finish(output),
            kv_byte_seconds=float(output.emitted),
            logprobs=[output.logprob] * len(tokens) if frame.num_logprobs >= 0 else [],
        )
        return [news]

    def search(self, output: _Output) -> list[ipc.Output]:
        frame = output.frame
        first = not output.blocks
        output.blocks = 1
        output.emitted += 1
        news = ipc.Output(
            handle=frame.handle,
            admitted_max_tokens=1000 if first else 0,
            unseen_tokens=frame.beam_width,
            kv_byte_seconds=float(output.emitted),
        )
        if output.mode == HANG or output.emitted < output.count:
            return [news]
        del self.outputs[frame.handle, 0]
        ends = [
            ipc.Output(
                handle=frame.handle,
                index=index,
                token_ids=[35 + index] * output.count,
                finish_reason="length",
                score=-float(index),
                kv_byte_seconds=float(output.emitted) if index == 0 else 0.0,
            )
            for index in range(frame.n)
        ]
        return [news, *ends]

    def tokens(self, request: _Output) -> list[int]:
        if request.mode == FLOOD:
            return [65] * request.count
        if request.mode == ECHO:
            return request.frame.prompt[2 + request.emitted : 3 + request.emitted]
        if request.emitted < request.count:
            return [65 + request.emitted % 26]
        if request.mode == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        return []

    def finish(self, request: _Output) -> str:
        done = {ECHO: len(request.frame.prompt) - 2, COUNT: request.count}.get(request.mode)
        if request.emitted != done:
            return ""
        del self.outputs[request.frame.handle, request.index]
        if request.frame.session:
            self.keep(request.frame)
        return "stop" if request.mode == ECHO else "length"

    def send_stats(self) -> None:
        if time.monotonic() < self.stats_at:
            return
        self.stats_at = time.monotonic() + 0.25
        open_blocks = sum(output.blocks for output in self.outputs.values())
        self.send(
            ipc.StatsFrame(
                at=time.time(),
                step=self.step,
                blocks_total=BLOCKS,
                blocks_free=BLOCKS - open_blocks,
                blocks_open=open_blocks,
                blocks_sealed=0,
                running=open_blocks,
                queued=len(self.outputs) - open_blocks,
                prompt_tokens=0,
                output_tokens=self.output_tokens,
                num_preemptions=0,
                tenants=[],
                share_groups=[
                    ipc.ShareGroupUse(
                        name=group.name,
                        kv_bytes=group.kv_soft_bytes,
                        kv_peak_bytes=group.kv_hard_bytes,
                        kv_cached_bytes=0,
                        num_prefixes=len(group.prefixes),
                        prefix_tokens=sum(map(len, group.prefixes)),
                    )
                    for group in self.share_groups.values()
                ],
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
        time.sleep(_LOADING_SECONDS)
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
