"""Games in rounds: both players play, each learns their gradient, and the average of what was played is the result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.curator.handles import Stream
from privopt.games.base import GameSolver
from privopt.games.gradients import Gradients, Move, Strategy
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.vertex_stream import VertexSampler
from privopt.planning.plan import Finding, Picture, bars, line
from privopt.planning.task import Task
from privopt.problems.saddle import BilinearGame, Game, Player, Who
from privopt.result import Outcome, Status
from privopt.solvers.fields import derived

Weights = NDArray[np.float64]
HELD_CELLS = 10_000_000


class Mover(Protocol):
    """One player during a run. Strategies are weights on the vertices."""

    def play(self, step: int) -> tuple[Weights, Weights]:
        """What is played in this round, and what of it goes into the result."""
        ...

    def learn(self, step: int, gradients: Gradients, x: Strategy, y: Strategy, source: Curator) -> None:
        """Learn the gradient at the strategies that were played, of the units of `source`."""
        ...


@dataclass
class Alone:
    """A player with one vertex: there is nothing to choose, and nothing is asked."""

    def play(self, step: int) -> tuple[Weights, Weights]:
        """The vertex."""
        del step
        return np.ones(1), np.ones(1)

    def learn(self, step: int, gradients: Gradients, x: Strategy, y: Strategy, source: Curator) -> None:
        """Nothing."""
        del step, gradients, x, y, source


@dataclass
class DrawnPlayer:
    """A player whose scores stay with the curator; drawn vertices come out.

    Attributes:
        player: seen from outside.
        stream: the scores.
        items: how many gradients the stream takes.
        fresh: whether the last vertex of each round is for the result and the others are played; else all are both.
    """

    player: Player
    stream: Stream
    items: int
    fresh: bool = False

    def play(self, step: int) -> tuple[Weights, Weights]:
        """The average of the vertices drawn now."""
        del step
        drawn = np.asarray(self.stream.ask("draw"))
        shares = self.player.vertices.shares
        if not self.fresh:
            return shares(drawn), shares(drawn)
        return shares(drawn[:-1]), shares(drawn[-1:])

    def learn(self, step: int, gradients: Gradients, x: Strategy, y: Strategy, source: Curator) -> None:
        """Add the gradient to the hidden scores."""
        if step < self.items:
            self.stream.ask("add", gradients.of(self.player.who, x, y), on=source)


@dataclass
class NoisedPlayer:
    """A player who sees noisy gradients, and plays the softmax of their weighted average.

    Attributes:
        player: seen from outside.
        clip: of a unit's gradient, in l2.
        noise_multiplier: of each release.
        temperature: by step, what multiplies the average gradient.
        weight: by step, what its gradient weighs.
        steps: rounds; the gradient of the last is not asked for.
    """

    player: Player
    clip: float
    noise_multiplier: float
    temperature: Callable[[int], float]
    weight: Callable[[int], float]
    steps: int
    average: Weights = field(init=False)
    total: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.average = np.zeros(self.player.vertices.count)

    def play(self, step: int) -> tuple[Weights, Weights]:
        """The softmax of the average so far."""
        played = softmax(-self.temperature(step) * self.average)
        return played, played

    def learn(self, step: int, gradients: Gradients, x: Strategy, y: Strategy, source: Curator) -> None:
        """Release the gradient and take it into the average."""
        if step >= self.steps - 1:
            return
        query = gradients.along_vertices(self.player.who, x, y, self.clip)
        released = np.asarray(source.release(query, Gaussian(self.noise_multiplier)))
        self.total += self.weight(step)
        self.average = self.average + (released - self.average) * (self.weight(step) / self.total)


def softmax(logits: Weights) -> Weights:
    """Probabilities proportional to the exponentials."""
    masses = np.exp(logits - np.max(logits))
    return masses / np.sum(masses)


def play_rounds(
    game: Game,
    movers: Mapping[Who, Mover],
    *,
    weights: Sequence[float],
    sources: Callable[[int], tuple[Curator, Gradients] | None],
) -> dict[Who, Weights]:
    """Play, learn, and average what was played.

    Args:
        game: the payoff.
        movers: both players.
        weights: of each round's play in the average; as many as there are rounds.
        sources: by round, who answers about its gradients and by which queries; None after the last useful one.
    Returns:
        The average weights of each player on their vertices.
    """
    players = game.players
    average: dict[Who, Weights] = {who: np.zeros(player.vertices.count) for who, player in players.items()}
    total = 0.0
    for step, weight in enumerate(weights):
        played: dict[Who, Strategy] = {}
        total += weight
        for who, player in players.items():
            now, kept = movers[who].play(step)
            average[who] += (kept - average[who]) * (weight / total)
            played[who] = player.vertices.mix(now)
        source = sources(step)
        if source is not None:
            curator, gradients = source
            for who in players:
                movers[who].learn(step, gradients, played["x"], played["y"], curator)
    return average


def outcome_of(
    game: Game,
    weights: Mapping[Who, Weights],
    findings: Mapping[str, Finding] | None = None,
    samplers: Mapping[Who, VertexSampler] | None = None,
) -> Outcome:
    """The strategies in coordinates, and which vertices they mix."""
    found: dict[str, Finding] = {}
    for who in game.players:
        support = np.flatnonzero(weights[who])
        support = support[np.argsort(-weights[who][support], kind="stable")]
        found[f"{who}_vertices"] = Finding(
            support, f"the vertices that the strategy of {who} mixes, the heaviest first"
        )
        found[f"{who}_weights"] = Finding(weights[who][support], "their weights")
    params = tuple(player.vertices.mix(weights[who]) for who, player in game.players.items())
    pictures = (strategy_picture(weights), *drawing_picture(samplers or {}))
    return Outcome(params, Status.FINISHED, {**found, **(findings or {})}, pictures)


def uniform_outcome(game: Game) -> Outcome:
    """Both players' uniform strategies: what can be said without data."""
    return outcome_of(game, {who: player.vertices.uniform() for who, player in game.players.items()})


def drawing_picture(samplers: Mapping[Who, VertexSampler]) -> tuple[Picture, ...]:
    """What a draw of each round may tell, for players whose vertices are drawn; of public numbers."""
    if not samplers:
        return ()
    series = tuple(
        line(who, np.max([sampler.range_bounds(pattern) for pattern in sampler.participation], axis=0))
        for who, sampler in samplers.items()
    )
    draws = ", ".join(f"{sampler.draws[0]:,} of {who}" for who, sampler in samplers.items())
    return (
        Picture(
            title="What one draw may tell",
            caption=f"By how much one unit may move the log-probabilities of a draw; drawn in each round: {draws}.",
            x="round",
            y="bounded range of a draw",
            series=series,
        ),
    )


def strategy_picture(weights: Mapping[Who, Weights], shown: int = 12) -> Picture:
    """The heaviest vertices of both strategies."""
    heaviest: dict[Who, list[float]] = {
        who: np.sort(one)[::-1][:shown].tolist() for who, one in weights.items()
    }
    places = max(len(one) for one in heaviest.values())
    return Picture(
        title="The strategies",
        caption="The weights of the heaviest vertices of each player, from the heaviest on.",
        x="rank of the vertex",
        y="weight",
        series=tuple(bars(who, [*one, *[0.0] * (places - len(one))]) for who, one in heaviest.items()),
        categories=tuple(str(place + 1) for place in range(places)),
    )


def stream_findings(who: Who, sampler: VertexSampler) -> dict[str, Finding]:
    """What one player's draws cost, in words; all of it is public."""
    ranges = max(
        (float(np.max(sampler.range_bounds(pattern), initial=0.0)) for pattern in sampler.participation),
        default=0.0,
    )
    return {
        f"{who}_draws": Finding(
            sum(sampler.draws),
            f"vertices drawn for {who}, which is all that was released about their gradients",
        ),
        f"{who}_range": Finding(
            ranges,
            "the largest bounded range of one of these draws: how far one unit moves its log-probabilities",
        ),
        f"{who}_rho": Finding(sampler.rho(), "what these draws cost together, in zero-concentrated privacy"),
    }


@dataclass(frozen=True, kw_only=True)
class RoundSolver(GameSolver):
    """A solver that plays T rounds.

    Attributes:
        steps: T; 0 returns the uniform strategies, and so does 1, which needs no data.
        held: whether the mean payoffs of a bilinear game are computed once and kept by the curator, so that a round
            costs no pass over the records. Default: where they have at most 10^7 numbers.
    """

    steps: int = derived(at_least=0)
    held: bool = derived()

    def default_held(self, task: Task[Game]) -> bool:
        """Bilinear games whose payoffs fit in memory; each batch of one pass holds its own."""
        game = task.problem
        return isinstance(game, BilinearGame) and 0 < game.rows * game.columns <= HELD_CELLS

    def player(self, who: Who) -> Player:
        """One player of the game that it was configured for."""
        return self.players[0 if who == "x" else 1]

    def choosing(self) -> list[Who]:
        """The players who have a choice."""
        return [one.who for one in self.players if one.vertices.count > 1] if self.steps > 0 else []

    def releases(self) -> int:
        """One for every round and player with a choice."""
        return self.rounds_of_data() * len(self.choosing())

    def moves(self) -> Mapping[Who, Move]:
        """How the players move, where that is set player by player."""
        return {}

    @property
    def holds_payoffs(self) -> bool:
        """See `held`."""
        return self.held

    def rounds_of_data(self) -> int:
        """Rounds that ask for gradients: all but the last."""
        return max(0, self.steps - 1)

    def evaluations(self) -> float:
        """Two a round, one a player."""
        return 2.0 * self.rounds_of_data()

    def passes(self) -> float:
        """One where payoffs are held, else one a player and round."""
        return min(self.evaluations(), 1.0) if self.held else self.evaluations()

    def check_configured(self) -> None:
        """Refuse to run with fields that are open, of the solver or of a player."""
        super().check_configured()
        missing = [f"{name} of {who}" for who, move in self.moves().items() for name in move.open_fields]
        if missing:
            raise ValueError(
                f"{self.title} is not configured: {', '.join(missing)} not set. Call `configure(task)` first."
            )
