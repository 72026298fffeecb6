"""Random traffic over a crowded pool, from a seed: prompts with common beginnings, forks, beams, share groups, moving
limits.

`World.step` audits every count, account and tree after each plan and each commit, and checks that no shared block is
written and that each request is metered for what it holds.
"""

import random

from engine.request import BeamParams, FinishReason, Priority
from tests.engine.alternating import AlternatingGrammars, alternating
from tests.engine.costs import set_costs
from tests.engine.world import World

TENANTS = ("minnow", "whale", "carp", "eel")
GROUPS = ("bank", "shop")
STOPS = (5, 6, 7)


class Traffic:
    """One world with everything going on at once."""

    def __init__(self, seed: int, world: World | None = None) -> None:
        self.chance = chance = random.Random(seed)
        self.num_steps = 0
        self.grammars = AlternatingGrammars(late=chance.random() < 0.5)
        self.world = world or World(
            num_blocks=chance.randint(6, 48),
            block_size=chance.choice((1, 2, 4, 16)),
            max_rows=chance.randint(1, 16),
            budget=chance.choice((chance.randint(1, 8), chance.randint(8, 48))),
            max_context=128,
            eos=STOPS,
            ahead=chance.random() < 0.5,
            num_slabs=chance.choice((0, 3, chance.randint(1, 100), 400)),
            blocks_a_plan=chance.choice((1, 4, 1000)),
            grammars=self.grammars,
        )
        self.num_slabs = self.world.shape.num_slabs
        set_costs(self.world, chance.choice((1.0, 1.0, 0.5, 0.0)), seed)
        self._stems = [[chance.randrange(900) for _ in range(chance.randint(1, 60))] for _ in range(4)]
        for tenant in TENANTS:
            self._set_policy(tenant)

    def run(self, num_events: int) -> World:
        """Let so many things happen, then let everything end, and check all of it."""
        for _ in range(num_events):
            self._event()
        self._finish()
        return self.world

    def run_steps(self, num_steps: int) -> World:
        """Let things happen for so many steps at least, then let everything end, and check all of it."""
        while self.num_steps < num_steps:
            self._event()
        self._finish()
        return self.world

    def _event(self) -> None:
        events = (self._submit, self._submit, self._submit, self._steps, self._steps, self._steps, self._steps)
        rare = (self._cancel, self._change_policy, self._remove_policy, self._share, self._squeeze, self._prepare)
        self.chance.choice(events if self.chance.random() < 0.85 else rare)()

    def _submit(self) -> None:
        """A request arrives, often with the beginning of another one, or as the next turn of one."""
        chance, world = self.chance, self.world
        prompt = list(chance.choice(self._stems))
        if chance.random() < 0.3 and world.finished:
            earlier = chance.choice([one for one in world.requests if one in world.finished] or [None])
            if earlier is not None:
                prompt = [*world.requests[earlier].prompt, *world.tokens[earlier]]
        prompt = prompt[: chance.randint(1, 100)] + [chance.randrange(1000) for _ in range(chance.randint(0, 12))]
        if chance.random() < 0.1:
            self._embed(prompt)
            return
        beams = self._beams() if chance.random() < 0.25 else None
        max_tokens = chance.choice((0, 1, chance.randint(1, 30)))
        world.submit(
            chance.choice(TENANTS),
            prompt if beams is None or chance.random() < 0.3 else prompt[-20:],
            max_tokens,
            priority=chance.choice(tuple(Priority)),
            deadline=world.now + 1.0 if chance.random() < 0.05 else 0.0,
            namespace=b"" if chance.random() < 0.1 else None,
            n=chance.choice((1, 1, 1, 1, 2, 5) if beams is None else (1, 2, 2, beams.width)),
            beams=beams,
            num_logprobs=chance.choice((-1, -1, -1, 0, 3)),
            prompt_logprobs=chance.choice((-1, -1, -1, -1, 0, 2)),
            stop_token_ids=frozenset(chance.sample(range(1000), chance.choice((0, 0, 0, 40)))),
            **(self._shaping(max_tokens) if beams is None and chance.random() < 0.3 else {}),
        )

    def _embed(self, prompt: list[int]) -> None:
        """A request that generates nothing."""
        chance, world = self.chance, self.world
        world.submit(
            chance.choice(TENANTS),
            prompt,
            0,
            priority=chance.choice(tuple(Priority)),
            deadline=world.now + 1.0 if chance.random() < 0.05 else 0.0,
            namespace=b"" if chance.random() < 0.1 else None,
            embed=True,
        )

    def _shaping(self, max_tokens: int) -> dict[str, object]:
        """Return what few requests ask for beside plain sampling, often several things at once."""
        chance = self.chance
        biased = chance.sample(range(chance.choice((12, 1000))), 5)  # end tokens among them, or not
        asked: dict[str, object] = {
            "frequency_penalty": chance.uniform(-2.0, 2.0),
            "presence_penalty": chance.uniform(-2.0, 2.0),
            "repetition_penalty": chance.uniform(0.5, 2.0),
            "logit_bias": tuple((token, chance.choice((-100.0, 3.0, 100.0))) for token in biased),
            "min_tokens": chance.choice((1, max_tokens, max_tokens // 2)),
        }
        if chance.random() < 0.3:
            asked["grammar"] = alternating(f"{chance.choice((0, 1, 5, 20))}{chance.choice(('', '+', '+', '?', '!'))}")
        return {name: value for name, value in asked.items() if name == "grammar" or chance.random() < 0.4}

    def _prepare(self) -> None:
        """A grammar is ready for those that wait for it."""
        waiting = [text for text, one in self.grammars.prepared.items() if not one.is_done]
        if waiting:
            self.grammars.finish(self.chance.choice(waiting))

    def _beams(self) -> BeamParams:
        """Return a search that is often too wide for rows, limits, or the number of outputs."""
        return BeamParams(
            width=self.chance.choice((2, 2, 3, 3, 5, 8)),
            length_penalty=self.chance.choice((1.0, 1.0, 0.0, -1.0, 2.0)),
            early_stopping=self.chance.random() < 0.3,
        )

    def _steps(self) -> None:
        """Time passes."""
        for _ in range(self.chance.randint(1, 8)):
            self._step(self.chance.choice((0.001, 0.05, 1.0)))

    def _step(self, seconds: float) -> bool:
        self.num_steps += 1
        return self.world.step(seconds)

    def _cancel(self) -> None:
        """A client leaves, or has enough of one output."""
        live = list(self.world.scheduler.roster.sequences.values())
        if live:
            one = self.chance.choice(live)
            index = self.chance.choice((None, one.index))
            self.world.scheduler.cancel([one.handle], FinishReason.CANCELLED, index)

    def _change_policy(self) -> None:
        """An operator moves limits."""
        self._set_policy(self.chance.choice(TENANTS))

    def _squeeze(self) -> None:
        """A tenant whose beams are in flight has no room for them for a moment."""
        searches = list(self.world.scheduler.roster.searches.values())
        if searches:
            tenant = self.chance.choice(searches).leader.tenant.name
            blocks, max_running = self.chance.choice(((self.chance.randint(0, 8), 8), (48, 1)))
            self.world.policy(tenant, blocks=blocks, max_running=max_running)
            self._steps()
            self._set_policy(tenant)

    def _set_policy(self, tenant: str) -> None:
        chance, num_blocks = self.chance, self.world.shape.num_blocks
        self.world.policy(
            tenant,
            blocks=chance.choice((num_blocks, chance.randint(0, num_blocks))),
            soft=chance.choice((0, num_blocks // 4, chance.randint(0, num_blocks))),
            slabs=chance.choice((400, chance.randint(0, self.num_slabs))),
            max_running=chance.choice((8, chance.randint(0, 5))),
            weight=chance.choice((0.1, 1.0, 8.0)),
            share_groups=tuple(group for group in GROUPS if chance.random() < 0.5),
        )

    def _remove_policy(self) -> None:
        """A tenant is taken off this worker, often for a moment."""
        tenant = self.chance.choice(TENANTS)
        self.world.update(removed=(tenant,))
        if self.chance.random() < 0.7:
            self._step(0.01)
            self._set_policy(tenant)

    def _share(self) -> None:
        """A share group comes, changes or goes."""
        chance, num_blocks = self.chance, self.world.shape.num_blocks
        prefixes = chance.sample(self._stems, chance.randint(0, 2))
        self.world.share(
            chance.choice(GROUPS), *prefixes, blocks=chance.randint(0, num_blocks), soft=chance.randint(0, num_blocks)
        )

    def _finish(self) -> None:
        """Open all limits: everything ends, whole and exact, and nothing is left in use."""
        world = self.world
        for text in self.grammars.prepared:
            self.grammars.finish(text)
        for tenant in TENANTS:
            world.policy(tenant, blocks=world.shape.num_blocks, soft=0, max_running=10)
        for _ in range(20_000):
            if not self._step(0.01):
                break
        check_all_ended(world)


def check_all_ended(world: World) -> None:
    """Every request has ended or was refused, all of its outputs, exact and metered; nothing is left."""
    assert set(world.finished) | set(world.refused) >= set(world.requests), "a request has not ended"
    for sequence, request in world.requests.items():
        if sequence not in world.refused:
            assert all((sequence, index) in world.finished for index in range(1, request.n))
        metered, held = world.metered(sequence), world.held_seconds[sequence]
        assert abs(metered - held) <= 1e-9 * max(1.0, held), "a block is metered twice or not at all"
    for output, reason in world.finished.items():
        world.assert_exact(output)
        _check_end(world, output, reason)
    world.assert_empty()


def _check_end(world: World, output: object, reason: FinishReason) -> None:
    """An output that was neither cancelled nor late ends at its limit or at a stop token, and not before."""
    tokens = world.tokens[output]  # type: ignore[index]
    sequence = output[0] if isinstance(output, tuple) else output
    sampling = world.requests[sequence].sampling  # type: ignore[index]
    stops = sampling.stop_token_ids | set(STOPS)
    if world.requests[sequence].embed:  # type: ignore[index]
        assert not tokens, "a request to embed has generated something"
    elif reason is FinishReason.STOP:
        assert tokens[-1] in stops
        assert len(tokens) > sampling.min_tokens or sampling.grammar, "an end token came too early"
    elif reason is FinishReason.LENGTH and not world.outputs[output][-1].message:  # type: ignore[index]
        assert len(tokens) == world.granted[sequence]  # type: ignore[index]
    if reason is not FinishReason.CANCELLED:
        assert not stops & set(tokens[:-1])
