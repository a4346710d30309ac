"""The contract of a solver of games: that of a solver, strategies in their sets, and hidden scores that stay hidden."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from privopt.data.units import Units
from privopt.games.base import GameSolver
from privopt.later import jnp
from privopt.ledger.amounts import Budget
from privopt.problems.saddle import BilinearGame, Game
from privopt.problems.vertices import set_of
from privopt.public import Relation
from privopt.testing.programs import ProgramTrial
from privopt.testing.toy_data import Records, Rule, TrialData

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
            ContractViolation: a strategy lies outside its set.
        """
        result = self.result
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
                raise self.violated(
                    Rule.SHAPE, f"the strategy of {who} lies outside its set", "the data themselves"
                )


@dataclass(frozen=True, kw_only=True)
class ToyGame(TrialData):
    """Records of a few values, and normal targets."""

    of_no_use: ClassVar[tuple[float, ...]] = (np.nan, 1e300)

    def arrays(self) -> Records:
        """Features (records, columns), and targets."""
        rng = np.random.default_rng(self.seed)
        features = rng.choice([-1.0, 1.0, 0.3], size=(self.records, self.columns))
        return features, rng.normal(size=self.records)

    def stored(self, features: NDArray[np.float64], targets: NDArray[np.float64], **described: Any) -> Units:
        """Records as units of this description."""
        return Units.from_arrays(features, targets, row_bound=4.0, storage="float64", **described)

    def instead_of(self) -> dict[str, NDArray[np.float64]]:
        """A row that is turned round, and what is huge or no number."""
        features, _ = self.arrays()
        return {
            "the opposite row, longer": -1e6 * features,
            "a huge row": np.full_like(features, 1e300),
            "a row with NaN": np.full_like(features, np.nan),
        }

    def others(self) -> dict[str, Records]:
        """Longer ones."""
        features, targets = self.arrays()
        return {"other records": (-3.0 * features[::-1], targets[::-1])}
