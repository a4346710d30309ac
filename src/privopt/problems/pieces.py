"""Losses whose slope is piecewise linear, as the places where it jumps and bends.

In terms of an argument u, the margin `y t` or the residual `t - y`, with du/dt = c (the label, or 1):

    phi(t, y) = psi(u),    psi'(u) = first + sum_j jump_j [u > p_j] + sum_j bend_j max(u - p_j, 0)

and 1/2 at a jump. Averages over a ball and envelopes of such losses are closed formulas of the knots p_j.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from privopt.later import Array, Float, jnp

Values: TypeAlias = Float[Array, "..."]
Argument: TypeAlias = Literal["margin", "residual"]


class Knot(NamedTuple):
    """A place where the slope of psi changes.

    Attributes:
        position: p, of the argument.
        jump: by how much the slope is larger behind it.
        bend: by how much the slope's slope is larger behind it.
    """

    position: float
    jump: float = 0.0
    bend: float = 0.0


@dataclass(frozen=True)
class Pieces:
    """psi, up to a constant.

    Attributes:
        argument: what u is.
        first: the slope of psi before all knots.
        knots: where it changes, in order.
        at_zero: psi(0).
    """

    argument: Argument
    first: float
    knots: tuple[Knot, ...]
    at_zero: float

    @classmethod
    def of_steps(cls, argument: Argument, *steps: tuple[Knot, ...], first: float, at_zero: float) -> "Pieces":
        """From the rises and falls of the slope, see `step`."""
        return cls(argument, first, tuple(sorted(knot for one in steps for knot in one)), at_zero)

    def split(self, prediction: Values, target: Values) -> tuple[Values, Values | float]:
        """u and du/dt."""
        if self.argument == "residual":
            return prediction - target, 1.0
        label = jnp.clip(target, -1.0, 1.0)  # as the losses do
        return label * prediction, label


def step(position: float, height: float, halfwidth: float) -> tuple[Knot, ...]:
    """A rise of the slope by `height`, over `position +- halfwidth`."""
    if halfwidth == 0.0:
        return (Knot(position, height),)
    bend = 0.5 * height / halfwidth
    return Knot(position - halfwidth, bend=bend), Knot(position + halfwidth, bend=-bend)
