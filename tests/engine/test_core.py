"""The core as a process: a real model, a real socket, real signals."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from engine import ipc
from engine.config import EngineConfig
from engine.core import plans_ahead
from tests.engine.fake_runner import FakeRunner
from tests.engine.tiny_model import make_tiny_model
from tests.engine.world import World

DEADLINE_SECONDS = 60.0
POLICY = ipc.PolicyTenant(
    tenant="minnow",
    weight=1.0,
    kv_soft_bytes=0,
    kv_hard_bytes=1 << 20,
    max_running=4,
    max_queued=4,
    max_context_tokens=512,
    max_output_tokens=512,
    priority="standard",
)


class Core:
    """A core process and the front's end of its link."""

    def __init__(self, model: Path, folder: Path, **settings: str) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.PAIR)
        endpoint = f"ipc://{folder}/core"
        self.socket.bind(endpoint)
        environment = os.environ | {
            "ENGINE_MODEL": str(model),
            "ENGINE_KV_BYTES": "4MiB",
            "ENGINE_DTYPE": "float32",
            "ENGINE_POISON": "1",
            "ENGINE_THREADS": "1",
            "ENGINE_STATE_DIR": str(folder / "state"),
            **settings,
        }
        command = (sys.executable, "-m", "engine.core", "--endpoint", endpoint)
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    def send(self, frame: ipc.ToCore) -> None:
        """Send a frame."""
        self.socket.send(ipc.encode(frame))

    def receive(self, wanted: Callable[[ipc.ToFront], bool]) -> ipc.ToFront:
        """Return the first frame that is wanted; fail when none comes in time or the core ends."""
        until = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < until:
            if self.socket.poll(200):
                frame = ipc.decode_to_front(self.socket.recv())
                if wanted(frame):
                    return frame
            elif self.process.poll() is not None:
                raise AssertionError(f"the core ended: {self.process.communicate()[1]}")
        raise AssertionError("no such frame came in time")

    def of_type(self, kind: type) -> ipc.ToFront:
        """Return the next frame of a type."""
        return self.receive(lambda frame: isinstance(frame, kind))

    def output(self, handle: int, wanted: Callable[[ipc.Output], bool]) -> list[ipc.Output]:
        """Return the outputs of one request up to and with the first that is wanted."""
        found: list[ipc.Output] = []

        def take(frame: ipc.ToFront) -> bool:
            if not isinstance(frame, ipc.StepFrame):
                return False
            found.extend(output for output in frame.outputs if output.handle == handle)
            return bool(found) and wanted(found[-1])

        self.receive(take)
        return found

    def outputs(self, num_ends: int) -> list[ipc.Output]:
        """Return the outputs of all requests until so many have ended."""
        found: list[ipc.Output] = []

        def take(frame: ipc.ToFront) -> bool:
            found.extend(frame.outputs if isinstance(frame, ipc.StepFrame) else ())
            return sum(bool(output.finish_reason) for output in found) == num_ends

        self.receive(take)
        return found

    def finish(self) -> tuple[int, str]:
        """Wait for the process to end; return its status and what it logged."""
        logged = self.process.communicate(timeout=DEADLINE_SECONDS)[1]
        return self.process.returncode, logged

    def close(self) -> None:
        """Make sure that nothing is left."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        self.socket.close(linger=0)
        self._context.term()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint."""
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def core(model: Path, tmp_path: Path) -> Iterator[Core]:
    """A core that has reported ready."""
    core = Core(model, tmp_path)
    try:
        ready = core.of_type(ipc.ReadyFrame)
        assert isinstance(ready, ipc.ReadyFrame)
        assert ready.pid == core.process.pid
        assert ready.num_blocks * ready.block_bytes <= 4 << 20
        yield core
    finally:
        core.close()


def policy_frame(version: int = 1, **changes: object) -> ipc.PolicyFrame:
    """Return a snapshot for one tenant."""
    fields = {name: getattr(POLICY, name) for name in POLICY.__struct_fields__} | changes
    return ipc.PolicyFrame(version=version, epoch=0, snapshot=True, tenants=[ipc.PolicyTenant(**fields)], removed=[])


def submit_frame(handle: int, **changes: object) -> ipc.SubmitFrame:
    """Return a greedy request of 16 tokens."""
    fields: dict[str, object] = {
        "handle": handle,
        "request_id": f"request-{handle}",
        "tenant": "minnow",
        "namespace": b"n" * 32,
        "session": "",
        "priority": "standard",
        "deadline": 0.0,
        "policy_version": 1,
        "prompt": [1, 70, 80, 90],
        "max_tokens": 16,
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "seed": None,
        "stop_token_ids": [],
        "ignore_eos": True,
    }
    return ipc.SubmitFrame(**(fields | changes))  # type: ignore[arg-type]


def test_serves_a_request_and_stops_on_a_frame(core: Core) -> None:
    """Policy, request, tokens, end; then a StopFrame ends the process with status 0."""
    core.send(policy_frame())
    applied = core.of_type(ipc.AppliedFrame)
    assert isinstance(applied, ipc.AppliedFrame)
    assert (applied.version, applied.epoch) == (1, 0)
    core.send(submit_frame(7))
    outputs = core.output(7, lambda output: bool(output.finish_reason))
    assert outputs[0].admitted_max_tokens == 16
    assert sum(len(output.token_ids) for output in outputs) == 16
    assert outputs[-1].finish_reason == "length"
    held = [output.kv_byte_seconds for output in outputs]
    assert held == sorted(held)
    assert held[-1] > 0
    core.send(ipc.StopFrame())
    status, logged = core.finish()
    assert status == 0
    events = [json.loads(line)["event"] for line in logged.splitlines() if line.startswith("{")]
    assert events[-2:] == ["core_ready", "core_stopped"]


def test_swaps_what_a_lowered_limit_takes(core: Core) -> None:
    """By measured costs a request's blocks go to host memory and come back; its text is that of an undisturbed one."""
    prompt = [1 + 7 * place % 300 for place in range(100)]
    core.send(policy_frame(host_bytes=1 << 20))
    core.send(submit_frame(2, prompt=prompt[::-1], max_tokens=400))
    expected = core.output(2, lambda output: bool(output.finish_reason))
    core.send(policy_frame(version=2, kv_hard_bytes=0, host_bytes=1 << 20))
    core.receive(lambda frame: isinstance(frame, ipc.StatsFrame) and not frame.blocks_cached)
    core.send(policy_frame(version=3, host_bytes=1 << 20))

    found: list[ipc.Output] = []

    def is_aside(frame: ipc.ToFront) -> bool:
        found.extend(frame.outputs if isinstance(frame, ipc.StepFrame) else ())
        return isinstance(frame, ipc.StatsFrame) and frame.running == 0 and not frame.blocks_cached and bool(found)

    core.send(submit_frame(3, prompt=prompt[::-1], max_tokens=400))
    found += core.output(3, lambda output: len(output.token_ids) > 0)
    core.send(policy_frame(version=4, kv_hard_bytes=0, host_bytes=1 << 20))
    core.receive(is_aside)
    core.send(policy_frame(version=5, host_bytes=1 << 20))
    found += core.output(3, lambda output: bool(output.finish_reason))
    assert found[-1].num_preemptions == 1
    assert [token for one in found for token in one.token_ids] == [token for one in expected for token in one.token_ids]
    stats = core.of_type(ipc.StatsFrame)
    assert isinstance(stats, ipc.StatsFrame)
    assert stats.swapped_out_bytes >= stats.host_bytes_used > 0
    assert stats.swapped_in_bytes > 0
    assert stats.tenants[0].host_bytes == stats.host_bytes_used


@pytest.mark.parametrize(
    ("overlap", "held_back", "ahead"),
    [("auto", False, False), ("auto", True, True), ("on", False, True), ("off", True, False)],
)
def test_overlap_follows_the_runner_unless_it_is_set(overlap: str, held_back: bool, ahead: bool) -> None:
    """ENGINE_OVERLAP=auto plans ahead where the device computes beside the host."""
    runner = FakeRunner(World().shape, held_back=held_back)
    assert plans_ahead(EngineConfig(overlap=overlap), runner) is ahead


def test_plans_ahead_where_it_is_told_to(core: Core, model: Path, tmp_path: Path) -> None:
    """ENGINE_OVERLAP=on: greedy and seeded requests side by side have the same tokens as in a core that does not."""
    requests = [
        submit_frame(1),
        submit_frame(2, temperature=0.9, seed=5, prompt=[1, 5, 9]),
        submit_frame(3, prompt=[*range(1, 60)], max_tokens=9),
    ]
    found = []
    folder = tmp_path / "ahead"
    folder.mkdir()
    ahead = Core(model, folder, ENGINE_OVERLAP="on")
    try:
        for one in (core, ahead):
            one.send(policy_frame())
            for request in requests:
                one.send(request)
            ends: dict[int, list[int]] = {request.handle: [] for request in requests}
            for output in one.outputs(len(requests)):
                ends[output.handle] += output.token_ids
            found.append(ends)
        ahead.send(submit_frame(9, max_tokens=400))
        ahead.output(9, lambda output: bool(output.token_ids))
        ahead.process.send_signal(signal.SIGTERM)
        assert ahead.finish()[0] == 0
    finally:
        ahead.close()
    assert found[0] == found[1]
    assert [len(tokens) for tokens in found[0].values()] == [16, 16, 9]


def test_bad_frames_and_requests_end_nobody_elses(core: Core) -> None:
    """Garbage is ignored and a bad request refused while another request runs to its end."""
    core.send(policy_frame())
    core.send(submit_frame(1, max_tokens=200))
    core.socket.send(b"\xc1 not msgpack")
    core.socket.send(b"")
    core.send(submit_frame(2, priority="royal"))
    core.send(submit_frame(3, prompt=[10**6]))
    core.send(submit_frame(1))
    core.send(policy_frame(version=2, weight=-1.0))
    refused = core.output(2, lambda output: bool(output.refusal_code))[-1]
    assert refused.refusal_code == "invalid"
    assert "royal" in refused.message
    core.send(submit_frame(4))
    outputs = core.output(4, lambda output: bool(output.finish_reason))
    assert outputs[-1].finish_reason == "length"
    assert core.process.poll() is None


def test_cancel_ends_a_running_request_and_frees_its_blocks(core: Core) -> None:
    """A cancel is answered, and the stats then show an empty pool; they come without any request too."""
    core.send(policy_frame())
    core.send(submit_frame(1, max_tokens=400))
    core.output(1, lambda output: bool(output.token_ids))
    core.send(ipc.CancelFrame([1, 99]))
    assert core.output(1, lambda output: bool(output.finish_reason))[-1].finish_reason == "cancelled"
    stats = core.receive(lambda frame: isinstance(frame, ipc.StatsFrame) and frame.running == 0)
    assert isinstance(stats, ipc.StatsFrame)
    assert stats.blocks_open == stats.blocks_sealed == 0
    assert stats.blocks_free + stats.blocks_cached == stats.blocks_total
    later = core.of_type(ipc.StatsFrame)
    assert isinstance(later, ipc.StatsFrame)
    assert later.step == stats.step


def test_terminates_on_sigterm(core: Core) -> None:
    """SIGTERM stops the core as cleanly as a StopFrame."""
    core.process.send_signal(signal.SIGTERM)
    status, logged = core.finish()
    assert status == 0
    assert "core_stopped" in logged


def test_idle_core_sleeps(core: Core) -> None:
    """Without work the loop waits in poll: next to no processor time goes by."""

    def ticks() -> int:
        fields = Path(f"/proc/{core.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    core.of_type(ipc.StatsFrame)
    before = ticks()
    for _ in range(8):
        core.of_type(ipc.StatsFrame)
    assert ticks() - before < 0.2 * os.sysconf("SC_CLK_TCK")


def test_dies_with_its_parent(model: Path, tmp_path: Path) -> None:
    """A core whose front was killed is gone too."""
    script = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-m', 'engine.core', '--endpoint', 'ipc://{tmp_path}/core'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.bind(f"ipc://{tmp_path}/core")
        settings = {"ENGINE_MODEL": str(model), "ENGINE_KV_BYTES": "4MiB", "ENGINE_STATE_DIR": str(tmp_path / "state")}
        environment = os.environ | settings | {"ENGINE_THREADS": "1"}
        parent = subprocess.Popen(
            (sys.executable, "-c", script), env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert socket.poll(int(DEADLINE_SECONDS * 1000)), "the core has not come up"
        parent.kill()
        parent.communicate()
        until = time.monotonic() + DEADLINE_SECONDS
        while Path(f"/proc/{child}/cmdline").exists() and Path(f"/proc/{child}/cmdline").read_bytes():
            assert time.monotonic() < until, "the core outlived its parent"


def test_names_a_wrong_setting(tmp_path: Path) -> None:
    """A setting that cannot be served with ends the core with status 2 and one line that names it."""
    environment = os.environ | {"ENGINE_BLOCK_SIZE": "none", "ENGINE_STATE_DIR": str(tmp_path / "state")}
    command = (sys.executable, "-m", "engine.core", "--endpoint", f"ipc://{tmp_path}/core")
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert "ENGINE_BLOCK_SIZE" in json.loads(done.stderr)["error"]


def test_searches_with_a_real_model(core: Core) -> None:
    """Growth as it happens, hypotheses at the end, best first, each with its score and its log-probabilities."""
    core.send(policy_frame())
    core.send(submit_frame(5, n=2, beam_width=3, num_logprobs=0, length_penalty=0.5))
    outputs = core.output(5, lambda output: bool(output.finish_reason))
    ended = [output for output in outputs if output.finish_reason]
    assert [output.index for output in ended] == [0, 1]
    assert sum(output.unseen_tokens for output in outputs) == 3 * 16
    assert ended[0].score >= ended[1].score
    assert ended[0].token_ids != ended[1].token_ids
    for output in ended:
        assert len(output.token_ids) == len(output.logprobs) == 16
        assert sum(output.logprobs) / 16**0.5 == pytest.approx(output.score, rel=1e-4)
