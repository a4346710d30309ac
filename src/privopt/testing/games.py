"""The contract of a solver of games: that of a solver, strategies in their sets, and hidden scores that stay hidden."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from privopt.data.units import Units
from privopt.games.base import GameSolver
from privopt.ledger.amounts import Budget
from privopt.mechanisms.noise import NoiseSource
from privopt.problems.saddle import BilinearGame, Game
from privopt.problems.vertices import set_of
from privopt.public import Relation
from privopt.result import Result
from privopt.testing.programs import ProgramTrial
from privopt.testing.toy_data import Neighbours, Records, Rule, changed_place

BUDGET = Budget(2.0, 1e-5)
_MATRIX = BilinearGame(rows=2, columns=3)


def check_game(
    solver: GameSolver,
    game: Game = _MATRIX,
    *,
    budget: Budget = BUDGET,
    relations: Sequence[Relation | str] = ("replace-one", "add-or-remove-one"),
    records: int = 24,
    columns: int | None = None,
    by_user: bool = False,
    seed: int = 0,
) -> None:
    """Hold a solver of games to its promises on small data.

    It plays on data, on their neighbours, and on other data that give the same answers; without data, on recorded
    answers and on zeros; and on data from which nothing can be learnt. Where it draws vertices from a stream, what the
    stream hides is compared between neighbours with the same draws.

    Args:
        solver: configured or not; open fields are derived.
        game: what it plays.
        budget: calibrates the noise.
        relations: which data sets are neighbours.
        records: how many there are.
        columns: features of each; default: what the game reads, of a payoff of one's own as many as x has coordinates.
        by_user: whether two records are a user.
        seed: of data and noise.
    Raises:
        ContractViolation: which names the promise that was broken.
        ValueError: the solver cannot play the game, or cannot be configured.
    """
    for relation in relations:
        data = ToyGame(
            problem=game,
            relation=Relation.parse(relation),
            records=records,
            columns=width_of(game) if columns is None else columns,
            by_user=by_user,
            seed=seed,
        )
        again = (
            f"check_game(solver, game, relations=[{data.relation.value!r}], records={records}, "
            f"columns={data.columns}, by_user={by_user}, seed={seed})"
        )
        GameTrial(solver, data, budget, again).require_all()


def width_of(game: Game) -> int:
    """The features of a record that a game can be about."""
    return game.width if isinstance(game, BilinearGame) else game.x.vertices.dimension


@dataclass(frozen=True)
class GameTrial(ProgramTrial):
    """A solver of games on made-up data."""

    def require_all(self) -> None:
        """Every promise, and that strategies lie in their sets."""
        super().require_all()
        self.require_sets()

    def require_sets(self) -> None:
        """What is given back are strategies.

        Raises:
            ContractViolation: one is not.
        """
        self.require_strategies(self.result, "the data themselves")

    def require_strategies(self, result: Result, case: str) -> None:
        """See `require_sets`.

        Raises:
            ContractViolation: a strategy lies outside its set.
        """
        for who, strategy in zip(("x", "y"), result.params, strict=True):
            vertices = self.data.problem.players[who].vertices
            if f"{who}_vertices" in result.findings:
                mixed = np.zeros(vertices.count)
                mixed[result.findings[f"{who}_vertices"].value] = result.findings[f"{who}_weights"].value
                inside = np.min(mixed) >= 0.0 and abs(np.sum(mixed) - 1.0) <= 1e-12
                inside = inside and np.allclose(vertices.mix(mixed), strategy, rtol=0, atol=1e-12)
            else:
                inside = bool(set_of(vertices).contains(jnp.asarray(strategy)))
            if not inside:
                raise self.violated(Rule.SHAPE, f"the strategy of {who} lies outside its set", case)


@dataclass(frozen=True, kw_only=True)
class ToyGame:
    """Records of a few values, and normal targets.

    Attributes:
        problem: the game.
        relation: which data sets are neighbours.
        records: how many there are.
        columns: features of each.
        by_user: whether two records are a user, of at most three.
        seed: of the records.
    """

    problem: Game
    relation: Relation
    records: int
    columns: int
    by_user: bool = False
    seed: int = 0

    def arrays(self) -> Records:
        """Features (records, columns), and targets."""
        rng = np.random.default_rng(self.seed)
        features = rng.choice([-1.0, 1.0, 0.3], size=(self.records, self.columns))
        return features, rng.normal(size=self.records)

    def units(self, features: NDArray[np.float64], targets: NDArray[np.float64]) -> Units:
        """Records as units. Which ones of a user are used is chosen alike every time."""
        if not self.by_user:
            return Units.from_arrays(
                features, targets, n=self.records, relation=self.relation, row_bound=4.0, storage="float64"
            )
        return Units.from_arrays(
            features,
            targets,
            n=self.records // 2,
            relation=self.relation,
            row_bound=4.0,
            storage="float64",
            groups=np.arange(len(features)) // 2,
            max_records_per_user=3,
            noise=NoiseSource(7),
        )

    def plain(self) -> Units:
        """The data themselves."""
        return self.units(*self.arrays())

    def neighbours(self, *, last: bool = False) -> Iterator[Neighbours]:
        """Pairs that differ in one unit: its last record is another one, or the unit is gone; see `ToyData`."""
        features, targets = self.arrays()
        size = 2 if self.by_user else 1
        instead_of = {
            "the opposite row, longer": -1e6 * features,
            "a huge row": np.full_like(features, 1e300),
            "a row with NaN": np.full_like(features, np.nan),
        }
        for number, (name, instead) in enumerate(instead_of.items()):
            place = changed_place(0 if last else number, self.records // size)
            other, end = features.copy(), size * (place + 1) - 1
            other[end] = instead[end]
            if self.relation is Relation.REPLACE_ONE:
                yield Neighbours(name, self.units(features, targets), self.units(other, targets), place)
            else:
                kept = np.arange(self.records) // size != place
                yield Neighbours(
                    name, self.units(other, targets), self.units(other[kept], targets[kept]), place
                )

    def strangers(self) -> Iterator[tuple[str, Units]]:
        """Data sets of the same public description that are no neighbours; the last one differs in its count alone."""
        features, targets = self.arrays()
        yield "other records", self.units(-3.0 * features[::-1], targets[::-1])
        if self.relation is Relation.ADD_OR_REMOVE_ONE:
            half = self.records // 4 * 2
            yield "half of the units", self.units(features[:half], targets[:half])

    def hopeless(self) -> Iterator[tuple[str, Units]]:
        """Data from which nothing can be learnt."""
        features, targets = self.arrays()
        for value in (np.nan, 1e300):
            yield f"rows of {value}", self.units(np.full_like(features, value), targets)
