"""A launched step: where its result comes from."""

from collections.abc import Sequence

from engine.errors import CoreError
from engine.model.asked import Asked, read_answers
from engine.model.lanes import LOADS, STORES, WAITS, Lane
from engine.step import StepResult


class Launched:
    """A step whose tokens may still be on their way from the device."""

    def __init__(
        self, lane: Lane, asked: Asked, sizes: Sequence[int], *, number: int, checked: bool, beside: bool
    ) -> None:
        self._lane, self._asked, self._sizes = lane, asked, sizes
        self._number, self._checked = number, checked
        self._beside = beside  # loads went on while it computed
        self._result: StepResult | None = None

    def wait(self) -> StepResult:
        """Block until the tokens are here.

        Raises:
            CoreError: the step read a slot that was poisoned.
        """
        if self._result is None:
            self._result = self._read()
        return self._result

    def _read(self) -> StepResult:
        values, seconds = self._lane.wait()
        if self._checked and values.pop():
            raise CoreError(f"step {self._number} read a stale or foreign KV slot: its logits are NaN")
        answers = read_answers(values, self._sizes, self._asked)
        loads = self._lane.seconds_of(LOADS)
        hidden = loads - self._lane.seconds_of(WAITS) if self._beside else 0.0  # that the step computed meanwhile
        return StepResult(
            token_ids=answers.token_ids,
            seconds=seconds + max(0.0, hidden),
            logprobs=answers.logprobs,
            store_seconds=self._lane.seconds_of(STORES),
            load_seconds=loads,
            prompt_logprobs=answers.prompts,
            pooled=answers.means,
        )
