"""What a person chooses for a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How often and how large."""

    rounds: int
    size: float
    """A factor on every amount; 1 is what the targets are stated for."""

    def sized(self, amount: int) -> int:
        """An amount at the size chosen, at least 1."""
        return max(1, round(amount * self.size))
