"""A real scheduler over a real runner, without sockets: what requests get, whatever happens to them meanwhile.

serving = Serving(folder, num_blocks=40, budget=16)
handle = serving.submit(prompt, n=2, temperature=0.8, seed=3, max_tokens=12)
serving.run()
serving.tokens[handle, 1]
"""

from collections import defaultdict, deque
from collections.abc import Sequence

from engine.config import EngineConfig
from engine.core import make_scheduler
from engine.model.families import read_spec
from engine.model.folder import ModelFolder
from engine.model.link import Link
from engine.model.runner import ModelRunner
from engine.policy import PolicyUpdate, TenantPolicy
from engine.request import BeamParams, GenerationRequest, RequestId, SamplingParams, SequenceId, TenantId
from engine.scheduler.outputs import OutputExtras, RequestOutput
from engine.step import StepHandle, StepPlan, TokenLogprobs
from tests.engine.world import ShortOutputs

TENANT = TenantId("minnow")
Output = tuple[int, int]  # a request's handle and the index of its output


def block_bytes(folder: ModelFolder, block_size: int) -> int:
    """Return the bytes of a block in float32."""
    spec, config = read_spec(folder.config), folder.config
    if spec is not None:
        return spec.num_layers * 2 * block_size * spec.num_kv_heads * spec.head_dim * 4
    heads = config["num_attention_heads"]
    elements = config["hidden_size"] // heads * config.get("num_key_value_heads", heads)
    return int(config["num_hidden_layers"] * 2 * block_size * elements * 4)


class Serving:
    """One tenant's requests on a float32 engine with poison. Bookkeeping is audited in every step."""

    def __init__(
        self,
        folder: ModelFolder,
        *,
        num_blocks: int = 256,
        block_size: int = 8,
        budget: int = 512,
        overcommits: bool = False,
        runner: ModelRunner | None = None,
        link: Link | None = None,
    ) -> None:
        """Start an engine with `budget` tokens a step; with `overcommits` it lets more requests run than will fit.

        Over a `link` as to a GPU it plans and launches each step before the one before it is waited for. A `runner` of
        the same blocks is taken over from an engine that has stopped, with whatever its pages hold.
        """
        self._block_bytes = block_bytes(folder, block_size)
        config = EngineConfig(
            dtype="float32",
            kv_bytes=num_blocks * self._block_bytes,
            block_size=block_size,
            max_batched_tokens=budget,
            max_running=32,
            threads=1,
            poison=True,
        )
        self.runner = runner or ModelRunner(config, folder, link)
        self._launched: deque[tuple[StepPlan, StepHandle]] = deque()
        assert self.runner.shape.num_blocks == num_blocks
        self.scheduler = make_scheduler(config, folder, self.runner)
        self._overcommits = overcommits
        self._version = self._num_submitted = 0
        self.limit(num_blocks)
        self.tokens: dict[Output, list[int]] = defaultdict(list)
        self.logprobs: dict[Output, list[float]] = defaultdict(list)
        self.measured: dict[Output, list[TokenLogprobs]] = defaultdict(list)  # the same with the likeliest tokens
        self.prompts: dict[int, list[TokenLogprobs]] = defaultdict(list)  # of prompts, by handle
        self.embeddings: dict[int, tuple[float, ...]] = {}
        self.ends: dict[Output, RequestOutput] = {}
        self.cached_tokens: dict[int, int] = {}

    def limit(self, num_blocks: int) -> None:
        """Give the tenant a hard limit."""
        self._version += 1
        policy = TenantPolicy(
            tenant=TENANT,
            kv_hard_bytes=num_blocks * self._block_bytes,
            max_running=32,
            max_queued=1000,
            max_context_tokens=2048,
            max_output_tokens=2048,
        )
        self.scheduler.apply(PolicyUpdate(version=self._version, epoch=0, snapshot=True, tenants=(policy,)))
        if self._overcommits:
            self.scheduler.roster.tenant(TENANT).lengths = ShortOutputs()

    def submit(
        self,
        prompt: Sequence[int],
        *,
        n: int = 1,
        beams: BeamParams | None = None,
        shares: bool = False,
        embed: bool = False,
        **sampling: object,
    ) -> int:
        """Submit a request and return its handle; with `shares` it may use and leave cached blocks."""
        self._num_submitted = handle = self._num_submitted + 1
        request = GenerationRequest(
            request_id=RequestId(str(handle)),
            tenant=TENANT,
            namespace=b"secret" if shares else b"",
            prompt=list(prompt),
            sampling=SamplingParams(**sampling),  # type: ignore[arg-type]
            n=n,
            beams=beams,
            embed=embed,
        )
        self.scheduler.submit(SequenceId(handle), request)
        return handle

    def step(self) -> bool:
        """Run one step; return whether there was one to run."""
        plan = self.scheduler.plan()
        self.scheduler.audit()
        if plan is not None:
            self._launched.append((plan, self.runner.launch(plan)))
        is_busy = bool(self._launched)
        while len(self._launched) > (self.runner.runs_ahead and plan is not None):
            oldest, handle = self._launched.popleft()
            for output in self.scheduler.commit(oldest, handle.wait()):
                self._take(output)
        for output in self.scheduler.take_outputs():
            self._take(output)
        return is_busy

    def run(self, limit: int = 5000) -> None:
        """Step until nothing can run, and make sure that all has ended."""
        for _ in range(limit):
            if not self.step():
                break
        assert not self.scheduler.roster.sequences, "something never ended"

    @property
    def num_preemptions(self) -> int:
        """Requests that lost their blocks so far."""
        return self.scheduler.roster.num_preemptions

    def _take(self, output: RequestOutput) -> None:
        assert output.refusal is None, output.refusal
        key = (int(output.sequence), output.output_index)
        self.tokens[key] += output.token_ids
        self.logprobs[key] += output.logprobs
        extras = output.extras or OutputExtras()
        tops = extras.top or [()] * len(output.logprobs)
        self.measured[key] += map(TokenLogprobs, output.logprobs, tops)
        self.prompts[key[0]] += extras.prompt
        if extras.embedding:
            self.embeddings[key[0]] = extras.embedding
        if output.admitted_max_tokens:
            self.cached_tokens[key[0]] = output.cached_tokens
        if output.finish_reason is not None:
            assert key not in self.ends, "ended twice"
            self.ends[key] = output
