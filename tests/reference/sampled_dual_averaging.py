"""Sampled dual averaging for a matrix game: both players' scores stay with the curator, drawn vertices come out.

Solves min_x max_y (1/n) sum_i (u_i . x)(v_i . y) over two simplices; a record is (u_i, v_i). With step weights
w_t = t + 1 and inverse temperatures beta_t = s sqrt t, t = 0, 1, ..., T - 1:

    play_P  = mean of K draws from softmax(-beta_t G_P)                 (uniform at t = 0)
    out_P  += (play_P - out_P) w_t / (w_0 + ... + w_t)
    G_P     = average of the mean clipped vertex gradients so far, with weights w

Source:
    Gonzalez, Guzman, Paquette 2024, Algorithm 1, with three changes: dual averaging with growing weights, full batches
    (or one pass over disjoint ones), and the played vertices themselves as output.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from privopt.curator.base import Curator
from privopt.ledger.events import Event, NoEvent, NonPrivateEvent, Parallel, Sequence
from privopt.mechanisms.vertex_stream import VertexSampler
from privopt.public import Public
from privopt.queries.base import RecordSum, query, static
from privopt.result import Result, Status


@query
class VertexGradient(RecordSum):
    """The mean over units of one player's clipped vertex gradient; both players descend, on f and on -f.

    Attributes:
        rows: number of the row player's vertices; a record's features are u (rows) and then v.
        of_rows: whose gradient: (v . play) u, or -(u . play) v.
        play: the other player's play, on the simplex.
        clip: L, half the largest range of one unit's gradient.
    Privacy:
        A constant added to all scores changes no draw, so the midrange is subtracted; then every entry is clipped to
        [-L, L]. One unit's vector has range at most 2 L, which is `radius`; a difference of two has at most 4 L.
    """

    norm: ClassVar[str] = "range"

    rows: int = static()
    of_rows: bool = static()
    play: Float[Array, " vertices"]
    clip: float

    def radius(self):
        return 2.0 * self.clip

    def shape(self, public: Public) -> tuple[int, ...]:
        return (self.rows,) if self.of_rows else (public.d - self.rows,)

    def record_contribution(self, private_features, private_target):
        del private_target
        private_u, private_v = private_features[: self.rows], private_features[self.rows :]
        return (private_v @ self.play) * private_u if self.of_rows else -(private_u @ self.play) * private_v

    def clip_unit(self, private_vector):
        private_middle = jnp.max(private_vector) / 2.0 + jnp.min(private_vector) / 2.0
        private_centred = private_vector - private_middle
        private_finite = jnp.all(jnp.isfinite(private_centred))
        private_safe = jnp.where(private_finite, private_centred, jnp.zeros_like(private_centred))
        return jnp.clip(private_safe, -self.clip, self.clip)


class MeanVertexSampler(VertexSampler):
    """Releases the softmax vector in place of drawn vertices: the mean of a draw. Not private, for reference values."""

    def event(self) -> Event:
        return NonPrivateEvent()

    def draw(self, state, noise):
        del noise
        private_logits = -self.temperatures[state.drawn] * state.private_scores
        state.drawn += 1
        private_masses = np.exp(private_logits - private_logits.max())
        return private_masses / private_masses.sum()


@dataclass(frozen=True, kw_only=True)
class SampledDualAveraging:
    """The game solver of this file.

    Attributes:
        rows: number of the row player's vertices.
        steps: T.
        draws: K, vertices drawn by each player at each step.
        scale: s, in one over the unit of the scores.
        clip: L, see `VertexGradient`.
        batches: sizes of T - 1 disjoint batches, one a step; None for all units at every step.
    Guarantee:
        Two streams of draws; each is rho-zCDP with the rho of its `VertexSampler`, for any records.
    """

    rows: int
    steps: int
    draws: int
    scale: float
    clip: float
    batches: tuple[int, ...] | None = None

    sampler: ClassVar[type[VertexSampler]] = VertexSampler

    def stream(self, public: Public) -> VertexSampler:
        """One player's stream: the last step's gradient is never used."""
        items = self.steps - 1
        sizes = (public.n,) * items if self.batches is None else self.batches
        return self.sampler.weighted_average(
            step_weights=[t + 1.0 for t in range(items)],
            inverse_temperatures=[self.scale * t**0.5 for t in range(self.steps)],
            draws=self.draws,
            half_range=self.clip,
            sensitivities=[public.relation.factor * 2.0 * self.clip / size for size in sizes],
            participation=None if self.batches is None else VertexSampler.one_item(items),
        )

    def event(self, public: Public) -> Event:
        both = (self.stream(public).event(),) * 2
        return Sequence(both if self.batches is None else (*both, Parallel((NoEvent(),) * (self.steps - 1))))

    def play(self, released: Array, vertices: int) -> Array:
        """The average of drawn vertices."""
        return jnp.bincount(jnp.asarray(released), length=vertices).astype(jnp.float64) / self.draws

    def solve(self, curator: Curator) -> Result:
        public = curator.public
        sizes = {"row": self.rows, "column": public.d - self.rows}
        streams = {who: curator.stream(f"{who} player", self.stream(public), (sizes[who],)) for who in sizes}
        sources = [curator] * (self.steps - 1) if self.batches is None else curator.blocks(self.batches)
        average = {who: jnp.zeros(size, jnp.float64) for who, size in sizes.items()}
        for t in range(self.steps):
            plays = {who: self.play(streams[who].ask("draw"), sizes[who]) for who in sizes}
            share = 2.0 / (t + 2.0)  # w_t / (w_0 + ... + w_t)
            average = {who: average[who] + (plays[who] - average[who]) * share for who in sizes}
            if t < self.steps - 1:
                for who, other in (("row", "column"), ("column", "row")):
                    gradient = VertexGradient(
                        rows=self.rows, of_rows=who == "row", play=plays[other], clip=self.clip
                    )
                    streams[who].ask("add", gradient, on=sources[t])
        return Result((average["row"], average["column"]), Status.FINISHED, curator.transcript)


class MeanDualAveraging(SampledDualAveraging):
    """The same with every draw replaced by its mean."""

    sampler: ClassVar[type[VertexSampler]] = MeanVertexSampler

    def play(self, released: Array, vertices: int) -> Array:
        del vertices
        return jnp.asarray(released)
