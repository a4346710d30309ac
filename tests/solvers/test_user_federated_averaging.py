"""Federated averaging of users' models: equal to plain loops, private for any user, refused where a pass is a step."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import privopt
from privopt.curator.audit import Audit
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.errors import BudgetTooSmall
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_mu
from privopt.ledger.events import leaf_counts
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Instance
from privopt.problems import losses
from privopt.problems.constraints import L2Ball
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.public import Public, of_users
from privopt.queries.lots import visiting_order
from privopt.queries.users import HeldMean
from privopt.solvers.user_federated_averaging import UserFederatedAveraging, wins
from privopt.status import Status

NO_PRIVACY = Budget(math.inf, 0.0)
USERS, CAP, D = 30, 5, 3


def thirty_users(**options: Any) -> tuple[Units, Any, Any]:
    """Thirty users with two to five records each, and their rows and labels."""
    rng = np.random.default_rng(3)
    owners = np.repeat(np.arange(USERS), rng.integers(2, CAP + 1, USERS))
    features = rng.normal(size=(len(owners), D))
    labels = np.where(features @ [1.0, -2.0, 0.5] + rng.logistic(size=len(owners)) > 0, 1.0, -1.0)
    given: dict[str, Any] = {"row_bound": 10.0, "max_records_per_user": CAP, "storage": "float64"}
    units = Units.from_arrays(features, labels, groups=owners, noise=NoiseSource(1), **(given | options))
    return units, features, (labels, owners)


def plain_averaging(features, labels, owners, solver, *, ridge, radius):
    """The algorithm without noise, by its definition."""
    params, clip = np.zeros(D), None
    for turn in range(solver.rounds):
        eta = solver.step_size * solver.decay**turn
        order = [int(place) for place in np.asarray(visiting_order(turn, CAP))]
        moves = []
        for user in range(USERS):
            rows, targets, local = features[owners == user], labels[owners == user], params.copy()
            for place in order:
                if place < len(rows):
                    slope = -targets[place] / (1.0 + np.exp(targets[place] * (rows[place] @ local)))
                    local = local - eta * (slope * rows[place] + ridge * local)
                    local = local * min(1.0, radius / np.linalg.norm(local))
            moves.append(local - params)
        lengths = np.linalg.norm(moves, axis=1)
        low, high = (solver.longest / solver.span, solver.longest) if turn == 0 else (clip / 4, clip * 2)
        for _ in range(solver.first_counts if turn == 0 else solver.later_counts):
            middle = math.sqrt(low * high)
            low, high = (
                (low, middle) if (lengths <= middle).sum() >= solver.quantile * USERS else (middle, high)
            )
        clip = math.sqrt(low * high)
        shortened = np.array(moves) * np.minimum(1.0, clip / lengths)[:, None]
        params = params + shortened.mean(axis=0)
        params = params * min(1.0, radius / np.linalg.norm(params))
    return params, clip


@pytest.mark.later("dense")
@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_without_noise_it_is_the_plain_algorithm(layout: str) -> None:
    units, features, (labels, owners) = thirty_users()
    if layout == "sparse":
        units = Units.from_arrays(
            sparse.csr_array(features),
            labels,
            groups=owners,
            row_bound=10.0,
            max_records_per_user=CAP,
            storage="float64",
            noise=NoiseSource(1),
        )
    solver = UserFederatedAveraging(
        rounds=4, step_size=0.2, quantile=0.5, longest=5.0, noise_multiplier=0.0, later_counts=3
    )
    problem = Problem(losses.logistic, Ridge(0.05), L2Ball(0.4))
    result = privopt.minimize(problem, units, budget=NO_PRIVACY, solver=solver)
    expected, clip = plain_averaging(features, labels, owners, solver, ridge=0.05, radius=0.4)
    np.testing.assert_allclose(result.params, expected, rtol=1e-7)
    assert result.findings["clip"].value == pytest.approx(clip, rel=1e-9)
    assert result.status is Status.FINISHED


def test_without_noise_users_who_agree_meet_at_the_optimum() -> None:
    rng = np.random.default_rng(0)
    features, owners = rng.normal(size=(600, D)), np.arange(600) // 20
    truth = np.array([0.3, -1.0, 0.5])
    units = Units.from_arrays(
        features, features @ truth, groups=owners, row_bound=5.0, max_records_per_user=20, storage="float64"
    )
    result = privopt.minimize(
        Problem(losses.squared), units, budget=NO_PRIVACY, solver=UserFederatedAveraging(rounds=40, decay=1.0)
    )
    np.testing.assert_allclose(result.params, truth, atol=1e-6)


def test_the_means_have_nine_tenths_of_the_budget_and_all_counts_one() -> None:
    public = Public(n=1000, d=5, **of_users(100, "sqrt", 50))
    budget = Budget(1.0, 1e-6)
    solver = UserFederatedAveraging(rounds=6).configure(Instance(Problem(losses.logistic), public, budget))
    assert solver.counts() == 35
    assert solver.releases() == 41
    counts, _ = leaf_counts(solver.event(public))
    spent = {number: number / event.noise_multiplier**2 for event, number in counts.items()}
    assert set(spent) == {6, 35}
    total = gaussian_mu(1.0, 1e-6) ** 2
    assert spent[6] == pytest.approx(0.9 * total, rel=1e-3)
    assert spent[35] == pytest.approx(0.1 * total, rel=1e-3)


HOSTILE = {
    "nothing": (np.zeros((0, D)), np.zeros(0)),
    "ten thousand records": (np.ones((10_000, D)), np.ones(10_000)),
    "huge rows": (np.full((CAP, D), 1e30), np.ones(CAP)),
    "rows without end": (np.full((CAP, D), np.inf), np.ones(CAP)),
    "no numbers": (np.full((CAP, D), np.nan), np.full(CAP, np.nan)),
    "huge targets": (np.ones((CAP, D)), np.full(CAP, 1e300)),
    "the opposite": (np.tile([-10.0, 20.0, -5.0], (CAP, 1)), np.ones(CAP)),
}


@pytest.mark.at_once(
    "squared-huge rows-add-or-remove-one",
    "squared-huge rows-replace-one",
    "squared-huge targets-add-or-remove-one",
    "squared-huge targets-replace-one",
    "squared-no numbers-add-or-remove-one",
    "squared-no numbers-replace-one",
    "squared-nothing-replace-one",
    "squared-rows without end-add-or-remove-one",
    "squared-rows without end-replace-one",
    "squared-ten thousand records-add-or-remove-one",
    "squared-ten thousand records-replace-one",
    "squared-the opposite-replace-one",
)
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("loss", ["squared", "own"])
def test_no_user_moves_a_release_by_more_than_its_sensitivity(kind: str, relation: str, loss: str) -> None:
    def own(params, row, target):
        return (row @ params - target) ** 2 + 0.1 * params[0] ** 4

    rng = np.random.default_rng(5)
    owners = np.repeat(np.arange(USERS), CAP)
    features, targets = rng.normal(size=(len(owners), D)), rng.normal(size=len(owners))
    rows, values = HOSTILE[kind]
    kept = owners > 0
    sides = []
    for x, y, keys in (
        (features, targets, owners),
        (
            np.concatenate([rows, features[kept]]),
            np.concatenate([values, targets[kept]]),
            np.concatenate([np.zeros(len(rows), int), owners[kept]]),
        ),
    ):
        if relation == "add-or-remove-one":  # the one is added to the others
            x, y, keys = (x, y, keys) if x is not features else (x[kept], y[kept], keys[kept])
        sides.append(
            Units.from_arrays(
                x,
                y,
                groups=keys,
                n=USERS,
                row_bound=2.0,
                relation=relation,
                max_records_per_user=CAP,
                noise=NoiseSource(1),
            )
        )
    problem = Problem(losses.squared if loss == "squared" else losses.RecordLoss(own))
    solver = UserFederatedAveraging(rounds=2, step_size=0.3, longest=3.0, noise_multiplier=5.0).configure(
        Instance(problem, sides[0].public, Budget(3.0, 1e-5))
    )
    ledger = Ledger(Budget(1e6, 1e-5), relation, plan=solver.event(sides[0].public))
    audit = Audit(*sides, ledger, noise=NoiseSource(2))
    result = solver.solve(audit, problem)
    assert len(audit.moves) == solver.releases()
    assert max(ratio for _, ratio in audit.moves) <= 1.0
    assert np.all(np.isfinite(result.params))


def agreeing_users(seed: int) -> Units:
    """1200 users with 20 records each, of one model."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(24_000, D))
    labels = np.where(features @ [1.0, -2.0, 0.5] + rng.logistic(size=24_000) > 0, 1.0, -1.0)
    owners = np.arange(24_000) // 20
    return Units.from_arrays(
        features, labels, groups=owners, row_bound=4.0, max_records_per_user=20, noise=NoiseSource(1)
    )


@pytest.mark.audit
def test_the_stable_aggregator_passes_where_users_agree() -> None:
    solver = UserFederatedAveraging(rounds=6, aggregator="stable")
    units, budget = agreeing_users(0), Budget(4.0, 1e-6)
    result = privopt.minimize(losses.logistic, units, budget=budget, solver=solver, random_state=0)
    assert result.status is Status.FINISHED
    assert result.findings["fallbacks"].value == 0.0
    assert result.plan.releases == 6 + 6 + 35
    np.testing.assert_allclose(result.params, [1.0, -2.0, 0.5], atol=0.4)
    assert 0.999 * budget.epsilon <= result.transcript.epsilon(budget.delta) <= budget.epsilon


def test_where_the_test_fails_the_clipped_mean_costs_what_was_planned() -> None:
    units, budget = agreeing_users(0), Budget(4.0, 1e-6)
    solver = UserFederatedAveraging(rounds=3, aggregator="stable", quantile=0.02, outliers=0.1)
    result = privopt.minimize(losses.logistic, units, budget=budget, solver=solver, random_state=0)
    assert result.status is Status.FELL_BACK
    assert result.findings["fallbacks"].value > 0.0
    assert result.transcript.releases == result.plan.releases
    assert result.transcript.epsilon(budget.delta) <= budget.epsilon


def test_a_stable_aggregator_says_how_many_users_it_needs() -> None:
    public = Public(n=150, d=3, **of_users(100, "user"))
    with pytest.raises(BudgetTooSmall, match="give at least"):
        UserFederatedAveraging(aggregator="stable").configure(
            Instance(Problem(losses.logistic), public, Budget(1.0, 1e-6))
        )


class BrokenCurator(LocalCurator):
    """Answers every mean but the first with what no processor should make of it."""

    means = 0

    def _answer(self, query: Any, *arguments: Any) -> Any:
        released = super()._answer(query, *arguments)
        self.means += isinstance(query, HeldMean)
        return released * np.nan if isinstance(query, HeldMean) and self.means > 1 else released


def test_a_mean_that_is_not_finite_ends_at_the_last_finite_point() -> None:
    units, _, _ = thirty_users()
    problem, budget = Problem(losses.logistic), Budget(8.0, 1e-3)
    solver = UserFederatedAveraging(rounds=4, noise_multiplier=2.0).filled(
        Instance(problem, units.public, budget)
    )
    ledger = Ledger(Budget(1e6, 1e-5), "replace-one", plan=solver.event(units.public))
    result = solver.solve(BrokenCurator(units, ledger, noise=NoiseSource(1)), problem)
    assert result.status is Status.DIVERGED
    assert np.all(np.isfinite(result.params))
    assert np.any(np.asarray(result.params) != 0.0)
    assert result.transcript.releases == 4 + 10 + 15  # what was planned is released, whatever becomes of it


@pytest.mark.parametrize(
    ("public", "why"),
    [
        (Public(n=1000, d=3), "use gradient descent"),
        (Public(n=1000, d=3, **of_users(1, "user")), "use user-level gradient descent"),
    ],
)
def test_it_says_where_a_pass_is_no_more_than_a_step(public: Public, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        UserFederatedAveraging().configure(Instance(Problem(losses.logistic), public, Budget(1.0, 1e-6)))


def test_too_few_users_are_refused_before_anything_is_read() -> None:
    public = Public(n=19, d=3, **of_users(100, "user"))
    with pytest.raises(BudgetTooSmall, match="users"):
        UserFederatedAveraging().configure(Instance(Problem(losses.logistic), public, Budget(1.0, 1e-3)))


@pytest.mark.parametrize(
    ("n", "typical", "expected"), [(300, 100, True), (300, 10, False), (30_000, 100, False)]
)
def test_it_is_for_few_users_with_many_records(n: int, typical: float, expected: bool) -> None:
    public = Public(n=n, d=20, **of_users(100, "sqrt", typical))
    assert wins(Instance(Problem(losses.logistic), public, Budget(1.0, 1e-6))) is expected


def test_records_are_never_thought_of_as_users() -> None:
    assert not wins(Instance(Problem(losses.logistic), Public(n=300, d=20), Budget(1.0, 1e-6)))


@pytest.mark.audit
def test_users_who_differ_are_fitted_in_rounds_with_noise() -> None:
    rng = np.random.default_rng(1)
    owners = np.arange(60_000) // 60
    features = rng.normal(size=(60_000, 5))
    truth = np.array([1.0, -1.0, 0.5, 0.0, 0.3])
    labels = np.where(features @ truth + rng.logistic(size=60_000) > 0, 1, 0)
    units = Units.from_arrays(
        features,
        labels,
        classes=[0, 1],
        groups=owners,
        row_bound=4.0,
        noise=NoiseSource(2),
        typical_records=60,
    )
    result = privopt.minimize(
        losses.logistic,
        units,
        budget=Budget(3.0, 1e-6),
        solver="user-federated-averaging",
        random_state=0,
    )
    assert result.status is Status.FINISHED
    np.testing.assert_allclose(result.params, truth, atol=0.25)
