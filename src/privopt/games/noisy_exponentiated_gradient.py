"""Noisy exponentiated gradient for games: both players play the softmax of averages of noisy released gradients.

Solves min_x max_y F(x, y) over two polytopes given by their vertices, F(x, y) = (1/n) sum over units of f(x, y; unit),
convex in x and concave in y. With T rounds t = 0, ..., T - 1 and weights w_t = t + 1, for each player P with m vertices

    play_P  = softmax(-s t^p G_P)                     (m,), weights on the vertices; uniform at t = 0
    g_P     = released mean of the units' clipped gradients along the vertices at the plays, (m,); of -f for y
    G_P    += (g_P - G_P) w_t / (w_0 + ... + w_t)     average of the released gradients so far
    out_P  += (play_P - out_P) w_t / (w_0 + ... + w_t)

and the result is (out_x, out_y). A gradient is clipped less its mean over the vertices, which no softmax sees. The last
round releases nothing, so each player has T - 1 releases. The loop is in `games.rounds`, the defaults are in
`planning.sampled_dual_averaging`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from privopt.games.dual_averaging import DualAveraging
from privopt.games.moves import Move, Noised
from privopt.problems.saddle import Who


@dataclass(frozen=True, kw_only=True)
class NoisyExponentiatedGradient(DualAveraging):
    """Dual averaging in which both players release their gradients with Gaussian noise; see the module.

    In `SampledDualAveraging` players release drawn vertices instead. This form is a baseline, and better for few
    vertices: its noise is proportional to the l2 norm of one unit's gradient, which grows with sqrt(m).

    Attributes:
        x, y: each player's s (`scale`), clipping norm C and noise multiplier. For a bilinear game with held mean
            payoffs a round reads no records, unless C is below sqrt(m) times the half-range of a unit's payoffs.
    Guarantee:
        (epsilon, delta)-DP under the curator's relation, for any records and payoffs: Gaussian releases of l2
        sensitivity at most factor * C / n, one per round and player, composed exactly. With one pass each batch of B
        units serves one round, with B in place of n.
    Source:
        Kivinen, Warmuth 1997 (exponentiated gradient); Bassily, Guzman, Menart 2023 (with noise, for saddle points).
    """

    name: ClassVar[str] = "noisy-exponentiated-gradient"

    x: Noised = field(default_factory=Noised)
    y: Noised = field(default_factory=Noised)

    def moves(self) -> Mapping[Who, Move]:
        """The settings of both players."""
        return {"x": self.x, "y": self.y}
