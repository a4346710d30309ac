"""Dual averaging for games: what the drawn and the noised form share, from schedule to run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

from privopt.curator.base import Curator
from privopt.games.gradients import Drawn, Gradients, Move, Noised
from privopt.games.rounds import (
    Alone,
    DrawnPlayer,
    Mover,
    NoisedPlayer,
    RoundSolver,
    outcome_of,
    play_rounds,
    stream_findings,
    uniform_outcome,
)
from privopt.ledger.events import Event, Parallel, repeat, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.vertex_stream import VertexSampler
from privopt.planning import saddle
from privopt.planning import sampled_dual_averaging as planning
from privopt.planning.plan import Finding
from privopt.planning.task import Forecast, Task
from privopt.problems.saddle import Game, Player, Who
from privopt.public import Public
from privopt.result import Outcome
from privopt.solvers.fields import choice, derived, number


@dataclass(frozen=True, kw_only=True)
class DualAveraging(RoundSolver):
    """Both players play softmax(-s t^p G_t), drawn or dense, G_t the average of their gradients so far.

    Attributes:
        batches: "full" asks every unit in every round, "one pass" each unit in one round.
        power: p, of the growth of the inverse temperatures.
        cap: kappa; s is at most kappa sqrt(2 log m) T^(1/2 - p) / L. Where it binds the plan costs less than the
            budget.
        sizes: of the T - 1 disjoint batches of one pass; empty with full batches.
    """

    batches: Literal["full", "one pass"] = choice("full")
    power: float = number(0.5, at_least=0, at_most=1)
    cap: float = number(5.0, above=0)
    sizes: tuple[int, ...] = derived()

    def default_steps(self, task: Task[Game]) -> int:
        return planning.default_steps(self, task)

    def default_sizes(self, task: Task[Game]) -> tuple[int, ...]:
        return planning.default_sizes(self, task)

    def draws_vertices(self, who: Who) -> bool:
        """Whether this player's moves are drawn."""
        return isinstance(self.moves()[who], Drawn)

    def moving(self, moves: Mapping[Who, Move]) -> Self:
        """The same solver with other moves."""
        return self.with_(**moves)

    def applicable(self, problem: Game, public: Public) -> str | None:
        """Any game, with enough units for the batches."""
        fewest = (
            planning.FEWEST * self.rounds_of_data()
            if self.batches == "one pass" and self.is_set("steps")
            else 0
        )
        if public.n < fewest:
            return f"{self.rounds_of_data():,} disjoint batches need {fewest:,} units, and there are n = {public.n:,}"
        return super().applicable(problem, public)

    def filled(self, instance: Task[Game]) -> Self:
        """See `Program.filled`; a player's number of draws, or clip, follows once the schedule is known."""
        solver = super().filled(instance)
        moves: dict[Who, Any] = {}
        for who, move in solver.moves().items():
            if isinstance(move, Drawn):
                moves[who] = planning.drawn_defaults(move, who, solver, instance)
            else:
                moves[who] = planning.noised_defaults(move, who, instance)
        return solver.moving(moves)

    def calibrated(self, task: Task[Game]) -> Self:
        """Scales and noise set to the budget; less is spent where every player is at the cap."""
        return self.moving(planning.calibrated(self, task))

    def price(self, task: Task[Game]) -> float:
        """The epsilon of this configured solver at the budget's delta."""
        return planning.price(self, task)

    def sampler(self, who: Who, public: Public) -> VertexSampler:
        """The draws of one player, as the curator keeps them."""
        move: Any = self.moves()[who]
        return planning.sampler(
            self.player(who), steps=self.steps, scale=move.scale, power=self.power, draws=move.draws,
            sizes=self.sizes, public=public,
        )  # fmt: skip

    def event(self, public: Public) -> Event:
        """Two streams of draws, or Gaussian releases, a player; batches that only feed streams are free."""
        streams = [self.sampler(who, public).event() for who in self.choosing() if self.draws_vertices(who)]
        releases = [
            Gaussian(move.noise_multiplier).event()
            for who in self.choosing()
            if isinstance(move := self.moves()[who], Noised)
        ]
        rounds = self.rounds_of_data()
        if not self.sizes:
            return sequence([*streams, *(repeat(event, rounds) for event in releases if rounds)])
        return sequence([*streams, Parallel((sequence(releases),) * rounds)])

    def releases(self) -> int:
        """A stream's opening and its draws, or the noisy gradients, for each player with a choice."""
        return sum(
            self.steps + 1 if self.draws_vertices(who) else self.rounds_of_data() for who in self.choosing()
        )

    def evaluations(self) -> float:
        """One for each player with a choice and round, each on all units or a batch of them."""
        times = len(self.choosing()) if self.players else 2
        return float(times) if self.sizes else float(times * self.rounds_of_data())

    def forecast(self, instance: Task[Game]) -> Forecast:
        return saddle.dual_averaging(self, instance)

    def run(self, curator: Curator, game: Game) -> Outcome:
        """Play, learn, average."""
        if self.steps == 0:
            return uniform_outcome(game)
        samplers: dict[Who, VertexSampler] = {
            who: self.sampler(who, curator.public) for who in self.choosing() if self.draws_vertices(who)
        }
        movers: dict[Who, Mover] = {}
        for who, player in game.players.items():
            movers[who] = self._mover(curator, player, samplers)
        answers = self._sources(curator, game)
        weights = [planning.step_weight(step) for step in range(self.steps)]
        played = play_rounds(game, movers, weights=weights, sources=answers)
        found: dict[str, Finding] = {}
        for who, sampler in samplers.items():
            found.update(stream_findings(who, sampler))
        return outcome_of(game, played, found, samplers)

    def _mover(self, curator: Curator, player: Player, samplers: Mapping[Who, VertexSampler]) -> Mover:
        move = self.moves()[player.who]
        if player.vertices.count == 1:
            return Alone()
        if isinstance(move, Drawn):
            sampler, size = samplers[player.who], player.vertices.count
            stream = curator.stream(f"vertices of {player.who}", sampler, (size,))
            return DrawnPlayer(player, stream, self.rounds_of_data())
        assert isinstance(move, Noised)
        scale, power = move.scale, self.power
        return NoisedPlayer(
            player,
            move.clip,
            move.noise_multiplier,
            temperature=lambda step: planning.temperature(scale, step, power),
            weight=planning.step_weight,
            steps=self.steps,
        )

    def _sources(self, curator: Curator, game: Game) -> Any:
        """By round, who answers: everybody, or a batch that serves once and is then let go."""
        rounds = self.rounds_of_data()
        if not self.sizes:
            gradients = Gradients.on(curator, game, hold=self.held) if rounds else Gradients(game)
            return lambda step: (curator, gradients) if step < rounds else None
        batches = curator.blocks(self.sizes)[::-1]

        def batch(step: int) -> tuple[Curator, Gradients] | None:
            if step >= rounds:
                return None
            block = batches.pop()
            return block, Gradients.on(block, game, hold=self.held)

        return batch


# ------------------------------------------------------------------------------------------------------------
# Sampled dual averaging: games whose players are seen only through vertices drawn from their hidden scores.
# Solves min_x max_y F(x, y) over two polytopes given by their vertices, F the mean payoff of the units, convex in x and
# concave in y. The default for all but small games.
# Source: Gonzalez, Guzman, Paquette 2024, Algorithm 1, much changed: see the class.


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


# ------------------------------------------------------------------------------------------------------------
# Noisy exponentiated gradient for games: both players play the softmax of averages of noisy released
# gradients.
# Solves min_x max_y F(x, y) over two polytopes given by their vertices, F(x, y) = (1/n) sum over units of f(x, y;
# unit), convex in x and concave in y. With T rounds t = 0, ..., T - 1 and weights w_t = t + 1, for each player P with m
# vertices
#
#     play_P  = softmax(-s t^p G_P)                     (m,), weights on the vertices; uniform at t = 0
#     g_P     = released mean of the units' clipped gradients along the vertices at the plays, (m,); of -f for y
#     G_P    += (g_P - G_P) w_t / (w_0 + ... + w_t)     average of the released gradients so far
#     out_P  += (play_P - out_P) w_t / (w_0 + ... + w_t)
#
# and the result is (out_x, out_y). A gradient is clipped less its mean over the vertices, which no softmax sees. The
# last round releases nothing, so each player has T - 1 releases. The loop is in `games.rounds`, the defaults are in
# `planning.sampled_dual_averaging`.


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
