"""Sampled dual averaging: games whose players are seen only through vertices drawn from their hidden scores.

Solves min_x max_y F(x, y) over two polytopes given by their vertices, F the mean payoff of the units, convex in x and
concave in y. The default for all but small games.
Source: Gonzalez, Guzman, Paquette 2024, Algorithm 1, much changed: see the class.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from privopt.games.dual_averaging import DualAveraging
from privopt.games.moves import Drawn, Move, Noised
from privopt.problems.saddle import Who


@dataclass(frozen=True, kw_only=True)
class SampledDualAveraging(DualAveraging):
    """Dual averaging on hidden scores; the averages of the drawn vertices are both what is played and the result.

    With weights w_t = t + 1 and t = 0, ..., T - 1, for each player P with m vertices:

        play_P  = average of K vertices drawn from softmax(-s t^p G_P)       (uniform at t = 0)
        out_P  += (play_P - out_P) w_t / (w_0 + ... + w_t)
        G_P     = average, with weights w, of the mean clipped gradients at the plays so far

    Attributes:
        x, y: how each player moves: `Drawn()`, or `Noised()` for a player whose gradient is short in l2.
    Guarantee:
        Every draw moves by bounded range, for any records and payoffs: see `VertexSampler`, which prices the whole
        stream of a player before the first draw. Both players' prices add.
        Utility (p = 1/2; Theorem A below, and follow-the-regularised-leader with learning rates beta_t / W_t):
        E gap <= sum_P [log m / (s sqrt T) + 1.42 s L^2 / sqrt T + 4 curvature / K], of the empirical game with full
        batches. The plan computes it, and says apart what is typical, 10 to 20 times less.
    Theorem A (play what is released):
        Let z^t be the softmaxes, h^t the averages drawn from them, g^t the gradients of both players at h^t, and h the
        w-weighted average of the h^t, W the sum of the weights. By convexity in x and concavity in y, for any u,

            W (F(h_x, u_y) - F(u_x, h_y)) <= sum_t w_t (F(h^t_x, u_y) - F(u_x, h^t_y)) <= sum_t w_t <g^t, h^t - u>
                = sum_t w_t <g^t, z^t - u> + sum_t w_t <g^t, h^t - z^t>.

        The first sum is the regret of mirror descent against the gradients that it was given, bounded for every u at
        once. The second has no u. Redraw one of the K vertices of h^t_x, a_1, as a'_1, and call the average h'_x: by
        exchangeability E <grad_x F(h^t), h^t_x - z^t_x> = E <grad_x F(h^t), a_1 - z^t_x>, and as h'_x is independent
        of a_1 given the past, this is E <grad_x F(h^t) - grad_x F(h'_x, h^t_y), a_1 - z^t_x>, at most (curvature of x)
        |h^t_x - h'_x|_1 |a_1 - z^t_x|_1 <= (curvature of x) (2 / K) 2; alike for y. So E of the second sum over W is
        at most 4 (curvature of x + curvature of y) / K. With gradients of fresh batches there is a third term,
        sum_t w_t <gradient of F - g^t, h^t - u>: the noise of the batches.
        So no bias of a gradient at an average has to be removed, and what is linear in both players needs K = 1.
    Differs from the paper:
        Draws are priced by bounded range; the plays are the result; full batches, or one pass over batches that cost
        the same; weights that grow linearly and temperatures that fall like t^-1/2; a step and a share of the price
        for each player, and K from what a cap on the temperature would leave over. Both players
        descend; as printed the second one would descend on f.
    Source:
        Gonzalez, Guzman, Paquette 2024, Algorithm 1, whose literal form is `SaddleMirrorDescent`.
    """

    name: ClassVar[str] = "sampled-dual-averaging"

    x: Drawn | Noised = field(default_factory=Drawn)
    y: Drawn | Noised = field(default_factory=Drawn)

    def moves(self) -> Mapping[Who, Move]:
        """See `x` and `y`."""
        return {"x": self.x, "y": self.y}
