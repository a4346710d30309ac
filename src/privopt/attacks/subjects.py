"""What is attacked: the public estimators and functions at their defaults, each with its worst-case records."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from privopt.data.units import Units
from privopt.estimators.fair import FairClassifier
from privopt.estimators.lasso import LassoClassifier, LassoRegressor
from privopt.estimators.linear import (
    HuberRegressor,
    LinearRegression,
    LinearSVC,
    LogisticRegression,
    PoissonRegressor,
    QuantileRegressor,
    Ridge,
    RobustClassifier,
    RobustRegressor,
)
from privopt.estimators.selection import PrivateSearchCV
from privopt.estimators.synthetic_data import SyntheticData
from privopt.ledger.amounts import Budget
from privopt.mean_of_users import user_mean
from privopt.problems import losses
from privopt.problems.constraints import L1Ball
from privopt.problems.grouped_loss import GroupedLoss
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge as RidgePenalty
from privopt.problems.saddle import BilinearGame
from privopt.public import Relation
from privopt.solve import minimize
from privopt.solve_games import minimax
from privopt.solvers.base import Solver
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.registry import named

# ------------------------------------------------------------------------------------------------------------
# Neighbours that differ as much as they can: records that hit every clip of a fit, wherever it stands.
# A default fit releases a second moment of the rows, then clipped gradients in coordinates in which all directions look
# alike. The changed record has a row that hardly any other record points at, so that in those coordinates it is long
# and its gradient is clipped, and a target that the others pull away from. On the other side it has the row of opposite
# features: with a constant column the two rows are orthogonal, so the second moment moves by its whole sensitivity, and
# where directions look alike they point against each other, so that the gradients do as well.


Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Records:
    """Made-up records.

    Attributes:
        rows: (n, d), entries in [-1, 1].
        targets: (n,).
    """

    rows: Values
    targets: NDArray[Any]

    def __len__(self) -> int:
        return len(self.rows)

    def first(self, count: int) -> "Records":
        """Some of them."""
        return Records(self.rows[:count], self.targets[:count])


@dataclass(frozen=True, kw_only=True)
class Turned:
    """Records of one feature, of which the last one is turned.

    Attributes:
        target: of the last record.
        instead: its target on the other side; default: the same.
        row: its feature on the other side; it is 1 here.
        others: targets of the other records, in turn.
        share: of the others that have a feature, 1 or -1; the rest has 0.
    """

    target: float
    others: tuple[float, ...]
    instead: float | None = None
    row: float = -1.0
    share: float = 0.0

    def left(self, n: int, kind: type) -> Records:
        """The data set with the record."""
        rows = np.zeros((n, 1))
        some = int(self.share * n) // 2
        rows[:some], rows[some : 2 * some], rows[-1] = 1.0, -1.0, 1.0
        targets = np.resize(np.asarray(self.others, np.float64), n)
        targets[-1] = self.target
        return Records(rows, targets.astype(kind))

    def right(self, n: int, kind: type) -> Records:
        """Its neighbour under replace-one; under add-or-remove-one it is `left` without the last record."""
        left = self.left(n, kind)
        rows, targets = left.rows.copy(), left.targets.copy()
        rows[-1] = self.row
        targets[-1] = self.target if self.instead is None else self.instead
        return Records(rows, targets)

    def strangers(self, n: int, kind: type) -> Iterator[Records]:
        """Data sets of as many records that have nothing in common with it: at random, and all zero."""
        generator = np.random.default_rng(1)
        known = np.unique(
            [0.0, self.target, self.target if self.instead is None else self.instead, *self.others]
        )
        yield Records(generator.uniform(-1, 1, (n, 1)), generator.choice(known, n).astype(kind))
        yield Records(np.zeros((n, 1)), np.zeros(n, kind))


# ------------------------------------------------------------------------------------------------------------
# What is attacked: the public estimators and functions at their defaults, each with its worst-case records.


HUGE = 1e9  # a target that no prediction comes near
End = Sequence[Any]  # everything that a program ends with


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a program is told to guarantee.

    Attributes:
        budget: epsilon and delta.
        relation: which data sets are neighbours.
        n: the public number of records.
        seed: decides who is sampled, and what is shuffled; answers have noise of their own.
    """

    budget: Budget
    relation: Relation
    n: int
    seed: int = 0

    def arguments(self) -> dict[str, Any]:
        """For an estimator."""
        nominal = {"n": self.n} if self.relation is Relation.ADD_OR_REMOVE_ONE else {}
        return {
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "relation": self.relation,
            "random_state": self.seed,
            **nominal,
        }


Run = Callable[[Claim, Records], End]


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A program with its worst case.

    Attributes:
        name: what it is called on the command line.
        run: runs it under a claim, and gives everything that it ends with.
        worst: its records.
        kind: of targets: int for classes.
        n: number of records.
    """

    name: str
    run: Run
    worst: Turned
    kind: type = float
    n: int = 1000

    def sides(self, relation: Relation) -> tuple[Records, Records]:
        """Two neighbours."""
        left = self.worst.left(self.n, self.kind)
        if relation is Relation.ADD_OR_REMOVE_ONE:
            return left, left.first(self.n - 1)
        return left, self.worst.right(self.n, self.kind)


def descent(solver: Solver | None = None, *, name: str = "descent") -> Subject:
    """Gradient descent of 16 steps: every record pulls by the whole clip, wherever the run stands."""
    chosen = (
        GradientDescent(steps=16, clip=0.7, step_size=1e-9, momentum=0.0, returns="last")
        if solver is None
        else solver
    )

    def run(claim: Claim, records: Records) -> End:
        units = Units.from_arrays(
            np.tile([1.0, 0.0], (len(records), 1)),
            records.targets,
            relation=claim.relation,
            row_bound=1.0,
            n=claim.n,
        )
        found = minimize(
            Problem(losses.squared), units, budget=claim.budget, solver=chosen, random_state=claim.seed
        )
        return [found.params, found.status.value]

    return Subject(name=name, run=run, worst=Turned(target=-HUGE, instead=HUGE, others=(-HUGE,)), n=16)


def _fitted(model: Any) -> End:
    return [model.coef_, model.intercept_, model.privacy_.to_json()]


def _estimator(make: Callable[..., Any], given: Mapping[str, Any], *, by_user: bool = False) -> Run:
    """A program that fits an estimator; `by_user` to users, each with one record."""

    def run(claim: Claim, records: Records) -> End:
        model = make(bounds=(-1.0, 1.0), **given, **claim.arguments())
        users = {"groups": np.arange(len(records))} if by_user else {}
        return _fitted(model.fit(records.rows, records.targets, **users))

    return run


def _loose(claim: Claim, records: Records) -> End:
    model = LogisticRegression(loose_bounds=(-1.0, 1.0), classes=[0, 1], **claim.arguments())
    return _fitted(model.fit(records.rows, records.targets))


def _fair(claim: Claim, records: Records) -> End:
    shares = {"sensitive_values": [0, 1], "shares": [0.5, 0.5]}
    model = FairClassifier(bounds=(-1.0, 1.0), classes=[0, 1], **shares, **claim.arguments())
    sensitive = np.arange(len(records)) % 2
    return _fitted(model.fit(records.rows, records.targets, sensitive_features=sensitive))


def _search(claim: Claim, records: Records) -> End:
    given = claim.arguments()
    budget = {name: given.pop(name) for name in ("epsilon", "delta", "random_state")}
    model = LogisticRegression(bounds=(-1.0, 1.0), classes=[0, 1], **given)
    search = PrivateSearchCV(model, {"alpha": [0.01, 1.0]}, **budget).fit(records.rows, records.targets)
    best: Any = search.best_estimator_
    return [best.coef_, best.intercept_, search.best_index_]


_FLAG = {"kind": "flag"}
_SCHEMA = {"columns": {"a": _FLAG, "b": _FLAG, "c": {"kind": "cat", "levels": ["x", "y", "z"]}}}


def _synthetic(claim: Claim, records: Records) -> End:
    high = records.rows[:, 0] > 0
    table = {"a": high.astype(int), "b": high.astype(int), "c": np.where(high, "x", "y")}
    data = SyntheticData(_SCHEMA, **claim.arguments()).fit(pa.table(table))
    drawn = data.sample(20, random_state=0)
    return [data.privacy_.to_json(), *(np.asarray(drawn[name]) for name in drawn)]


def _user_mean(claim: Claim, records: Records) -> End:
    users = np.arange(len(records))
    found = user_mean(records.rows, users, bound=1.0, **claim.arguments())
    return [found.value, found.status.value]


def _game(claim: Claim, records: Records) -> End:
    game = BilinearGame(rows=2, columns=2)
    units = Units.from_arrays(
        np.concatenate([records.rows, -records.rows, np.tile([1.0, -1.0], (len(records), 1))], axis=1),
        records.targets,
        relation=claim.relation,
        row_bound=game.row_bound,
        n=claim.n,
    )
    found = minimax(game, units, budget=claim.budget, random_state=claim.seed)
    return [*found.params, found.status.value]


_CLASS = Turned(target=1, others=(0,), share=0.1)
_NUMBER = Turned(target=1.0, others=(0.0,), share=0.07)
_COUNT = Turned(target=10, instead=4, others=(1,), share=0.05)
_SPLIT = Turned(target=1, others=(0, 1))
_NEAR = Turned(target=0.6, instead=0.4, row=1.0, others=(0.5,), share=0.3)
_ENDS = Turned(target=1.0, instead=0.0, row=1.0, others=(0.0, 1.0), share=0.3)
_TWO: dict[str, Any] = {"classes": [0, 1]}
_UNIT: dict[str, Any] = {"target_bounds": (0.0, 1.0)}

SUBJECTS = {
    subject.name: subject
    for subject in (
        descent(),
        Subject(name="logistic", run=_estimator(LogisticRegression, _TWO), worst=_CLASS, kind=int),
        Subject(
            name="softmax", run=_estimator(LogisticRegression, {"classes": [0, 1, 2]}), worst=_CLASS, kind=int
        ),
        Subject(name="svm", run=_estimator(LinearSVC, _TWO), worst=_CLASS, kind=int),
        Subject(name="robust", run=_estimator(RobustClassifier, _TWO), worst=_SPLIT, kind=int),
        Subject(
            name="lasso",
            run=_estimator(LassoClassifier, _TWO),
            worst=Turned(target=1, others=(0,)),
            kind=int,
        ),
        Subject(name="fair", run=_fair, worst=_CLASS, kind=int),
        Subject(name="linear", run=_estimator(LinearRegression, _UNIT), worst=_NUMBER),
        Subject(name="ridge", run=_estimator(Ridge, _UNIT), worst=_NUMBER),
        Subject(name="huber", run=_estimator(HuberRegressor, _UNIT), worst=_NUMBER),
        Subject(name="quantile", run=_estimator(QuantileRegressor, _UNIT), worst=_NUMBER),
        Subject(
            name="poisson", run=_estimator(PoissonRegressor, {"target_bounds": (0.0, 10.0)}), worst=_COUNT
        ),
        Subject(name="robust-regression", run=_estimator(RobustRegressor, _UNIT), worst=_NEAR),
        Subject(name="lasso-regression", run=_estimator(LassoRegressor, _UNIT), worst=_ENDS),
        Subject(name="users", run=_estimator(LogisticRegression, _TWO, by_user=True), worst=_CLASS, kind=int),
        Subject(name="users-linear", run=_estimator(LinearRegression, _UNIT, by_user=True), worst=_NUMBER),
        Subject(name="loose-bounds", run=_loose, worst=_CLASS, kind=int),
        Subject(
            name="chosen-penalty",
            run=_estimator(LogisticRegression, {"penalty": "l2", "alpha": "private", **_TWO}),
            worst=_CLASS,
            kind=int,
        ),
        Subject(name="search", run=_search, worst=_CLASS, kind=int),
        Subject(name="synthetic-data", run=_synthetic, worst=Turned(target=0.0, others=(0.0,))),
        Subject(name="user-mean", run=_user_mean, worst=Turned(target=0.0, others=(0.0,))),
        Subject(name="game", run=_game, worst=Turned(target=0.0, others=(0.0,))),
    )
}

# Those that are attacked in one run as well, and whether they predict classes.
IN_ONE_RUN: dict[str, tuple[Callable[..., Any], bool]] = {
    "logistic": (LogisticRegression, True),
    "svm": (LinearSVC, True),
    "robust": (RobustClassifier, True),
    "lasso": (LassoClassifier, True),
    "linear": (LinearRegression, False),
    "ridge": (Ridge, False),
    "huber": (HuberRegressor, False),
    "quantile": (QuantileRegressor, False),
    "poisson": (PoissonRegressor, False),
    "robust-regression": (RobustRegressor, False),
    "lasso-regression": (LassoRegressor, False),
}


# ------------------------------------------------------------------------------------------------------------
# The solvers of the registry at their defaults, as subjects: each on the first of a few problems that it solves.
RECORDS = 300
_PROBLEMS = (
    Problem(losses.logistic, RidgePenalty(0.01)),
    Problem(losses.logistic, constraint=L1Ball(2.0)),
    Problem(GroupedLoss(losses.logistic, 1, (1.0,))),
)


def solver_subject(name: str) -> Subject:
    """A solver as a subject.

    Args:
        name: of the registry.

    Raises:
        ValueError: none of the problems here is one for it.
    """
    solver = named(name)
    for by_user, problem in product((False, True), _PROBLEMS):
        units = _units(Turned(target=1, others=(0,)).left(RECORDS, int), None, by_user=by_user)
        if solver.obstacle(problem, units.public) is None:
            return Subject(
                name=name,
                run=_program(name, problem, by_user=by_user),
                worst=Turned(target=1, others=(0,), share=0.05),
                kind=int,
                n=RECORDS,
            )
    raise ValueError(f"none of the problems that are attacked here is one for {name!r}.")


def _units(records: Records, claim: Claim | None, *, by_user: bool) -> Units:
    return Units.from_arrays(
        records.rows,
        records.targets,
        classes=[0, 1],
        relation="replace-one" if claim is None else claim.relation,
        row_bound=1.0,
        n=RECORDS if claim is None else claim.n,
        groups=np.arange(len(records)) if by_user else None,
    )


def _program(name: str, problem: Problem, *, by_user: bool) -> Run:
    def run(claim: Claim, records: Records) -> End:
        found = minimize(
            problem,
            _units(records, claim, by_user=by_user),
            budget=claim.budget,
            solver=name,
            random_state=claim.seed,
        )
        return [found.params, found.status.value]

    return run
