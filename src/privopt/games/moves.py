"""How a player of a game moves, and what of that is released: drawn vertices, or noisy gradients."""

import math
from dataclasses import dataclass

from privopt.solvers.fields import check_fields, declared, derived


@dataclass(frozen=True, kw_only=True)
class Move:
    """The settings of one player; what is left open is derived from public numbers.

    Attributes:
        scale: what multiplies the average gradient in the softmax that is played, before the schedule of the steps,
            in one over the unit of the payoff; 0 plays uniformly.
    """

    scale: float = derived(at_least=0, below=math.inf)

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def open_fields(self) -> list[str]:
        """Which fields are not set."""
        return [
            name
            for name, field in declared(type(self)).items()
            if field.derived and getattr(self, name) is None
        ]


@dataclass(frozen=True, kw_only=True)
class Drawn(Move):
    """A player who plays averages of drawn vertices. The scores behind the draws stay with the curator.

    Attributes:
        draws: K, vertices drawn in each round.
    """

    draws: int = derived(at_least=1)


@dataclass(frozen=True, kw_only=True)
class Noised(Move):
    """A player who plays the softmax of an average of noisy gradients, which are what is released.

    Attributes:
        clip: C, the largest l2 norm of a unit's gradient along the vertices.
        noise_multiplier: standard deviation of each release over its sensitivity.
    """

    clip: float = derived(above=0)
    noise_multiplier: float = derived(at_least=0)
