"""Clocks of backends under test."""


class SteppedClock:
    """Seconds that pass when somebody lets them."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
