"""Output lengths in coarse tokens, predicted from lengths in the model's."""

from engine.scheduler.predict import OutputLengths


class CoarseLengths(OutputLengths):
    """What the scheduler expects of a tenant's outputs, whose prior is made for tokens of the model."""

    __slots__ = ("_grain",)

    def __init__(self, grain: int) -> None:
        super().__init__()
        self._grain = grain

    def observe(self, num_output: int, *, complete: bool = True) -> None:
        """Take in an output of so many coarse tokens."""
        super().observe(num_output * self._grain, complete=complete)

    def predict(self, generated: int = 0) -> int:
        """Return the length in coarse tokens."""
        return max(generated + 1, -(-super().predict(generated * self._grain) // self._grain))
