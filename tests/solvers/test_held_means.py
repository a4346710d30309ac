"""Means of held points as programs: what they cost, how they end, what one unit moves."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from tests.reference.promises import (
    NO_PRIVACY,
    assert_costs,
    assert_rehearses,
    assert_replays,
    hostile_rows,
    largest_move,
    solve,
)
from tests.support.held_samples import reference_points

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.errors import BudgetTooSmall
from privopt.ledger import accounting
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_mu
from privopt.ledger.events import DeltaEvent, GaussianEvent, PureEvent, Sequence, event_from_dict, leaf_counts
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.tests import GaussianTest, SparseTest
from privopt.planning.stable_mean import plan_radius_search, plan_stable_mean
from privopt.precision import double_precision
from privopt.queries.moments import UserAverage
from privopt.result import Result
from privopt.solvers.held_means import (
    ClippedMean,
    NormQuantile,
    PaperOutlierMean,
    SoftFriendlyMean,
    StableMean,
    StableMeanAuto,
)
from privopt.status import Status

N, D = 60, 3
CENTRE = np.zeros(D)
RELATIONS = ("replace-one", "add-or-remove-one")
CLIPPED = ClippedMean(radius=1.0, noise=Gaussian(2.0))
STABLE = StableMean(spread=0.6, test=GaussianTest(1.0, 1e-6), noise=Gaussian(2.0), outliers=0.05)
AUTO = StableMeanAuto(
    largest=4.0, search=SparseTest.of(8.0, tests=12, bad_event_delta=1e-6), noise=Gaussian(2.0), radii=12
)
SOFT = SoftFriendlyMean(within=1.2, least_weight=8.0, test=GaussianTest(1.0, 1e-6), noise=Gaussian(2.0))
PAPER = PaperOutlierMean(within=1.2, test=GaussianTest(1.0, 2e-6), noise=Gaussian(2.0), coupling_delta=1e-6)
EVERY = {"clipped": CLIPPED, "stable": STABLE, "auto": AUTO, "soft": SOFT, "paper": PAPER}
TESTED = {name: mean for name, mean in EVERY.items() if name != "clipped"}
ONLY_REPLACED = ("soft", "paper")


@pytest.fixture(autouse=True)
def x64():
    with double_precision():
        yield


def cluster(count=N, seed=0):
    rng = np.random.default_rng(seed)
    return np.array([3.0, -2.0, 1.0]) + 0.2 * rng.normal(size=(count, D))


def scattered(count=N):
    return 5.0 * np.random.default_rng(1).normal(size=(count, D))


def as_units(rows, relation="replace-one", n=None):
    return Units.from_arrays(
        rows, relation=relation, row_bound=50.0, n=len(rows) if n is None else n, storage="float64"
    )


def program(mean, centre=CENTRE, groups=None):
    def run(curator):
        held = curator.hold(UserAverage(bound=50.0), groups=groups)
        value, status = mean.release(curator, held, jnp.asarray(centre))
        return Result(value, status, curator.transcript)

    return run


def cases():
    for name in EVERY:
        for relation in RELATIONS:
            if name not in ONLY_REPLACED:
                yield pytest.param(name, relation, None, id=f"{name}, {relation}")
        yield pytest.param(
            name, "add-or-remove-one" if name != "auto" else "replace-one", 50, id=f"{name}, groups"
        )
    for name in ONLY_REPLACED:
        yield pytest.param(name, "replace-one", None, id=f"{name}, replace-one")


@pytest.mark.at_once("clipped, add-or-remove-one", "paper, groups")
@pytest.mark.parametrize(("name", "relation", "groups"), list(cases()))
def test_concentrated_points_pass_replay_cost_and_rehearse(name, relation, groups):
    mean, units = EVERY[name], as_units(cluster(N if groups is None else 8 * N), relation)
    run = program(mean, groups=groups)
    result = solve(run, units, plan=mean.event())
    assert_replays(run, result, units.public)
    assert leaf_counts(result.transcript.event())[0] == leaf_counts(mean.event())[0]
    if name != "auto":  # priced by a PLD, which takes a while
        assert_costs(result, mean.event(), units.public)
    if name == "clipped":
        assert_rehearses(run, mean.event(), units.public)
    assert event_from_dict(mean.event().to_dict()) == mean.event()
    assert result.status is Status.FINISHED


@pytest.mark.parametrize("name", TESTED)
def test_scattered_points_halt_or_fall_back_at_the_planned_price(name):
    units = as_units(scattered())
    centre = np.full(D, 7.0)
    result = solve(program(TESTED[name], centre), units, plan=TESTED[name].event())
    assert result.status is Status.HALTED
    np.testing.assert_array_equal(result.params, centre)
    falling = replace(TESTED[name], fallback=2.0)
    assert falling.event() == TESTED[name].event()
    run = program(falling, centre)
    fallen = solve(run, units, plan=falling.event())
    assert fallen.status is Status.FELL_BACK
    assert fallen.transcript[-1].name == "HeldMean"
    assert leaf_counts(fallen.transcript.event())[0] == leaf_counts(falling.event())[0]
    assert_replays(run, fallen, units.public)
    assert_rehearses(run, falling.event(), units.public)


def neighbours(relation):
    """Pairs of data sets, and how the second differs."""
    rows = cluster()
    for kind, other in hostile_rows(rows[5]).items():
        changed = rows.copy()
        changed[3] = other
        yield kind, as_units(rows, relation), as_units(changed, relation)
    if relation != "replace-one":
        yield "removed", as_units(rows, relation), as_units(rows[:-1], relation, n=N)


@pytest.mark.at_once(
    "clipped, add-or-remove-one", "clipped, replace-one", "paper, replace-one", "soft, replace-one"
)
@pytest.mark.parametrize(("name", "relation", "groups"), list(cases()))
def test_no_unit_moves_a_release_by_more_than_its_sensitivity(name, relation, groups):
    for mean in (EVERY[name], *((replace(EVERY[name], fallback=2.0),) if name in TESTED else ())):
        for _, left, right in neighbours(relation):
            if (
                relation != "replace-one"
                and groups is None
                and _ not in ("removed", "not a number", "infinite")
            ):
                continue  # a row that is replaced is no neighbour there
            run = program(mean, groups=groups)
            assert largest_move(run, left, right, plan=mean.event()) <= 1.0


@pytest.mark.parametrize("relation", RELATIONS)
def test_without_noise_the_stable_mean_is_near_the_mean_of_the_cluster(relation):
    rows = np.concatenate([cluster(57), scattered(3) + 20.0])
    silent = replace(STABLE, test=GaussianTest(0.0), noise=Gaussian(0.0), spread=1.0)
    result = solve(program(silent), as_units(rows, relation), budget=NO_PRIVACY)
    assert result.status is Status.FINISHED
    assert np.linalg.norm(np.asarray(result.params) - cluster(57).mean(axis=0)) < 0.15


def test_the_soft_mean_has_its_reference_values():
    silent = replace(SOFT, within=0.6, test=GaussianTest(0.0), noise=Gaussian(0.0))
    result = solve(program(silent), as_units(reference_points()), budget=NO_PRIVACY)
    assert result.transcript[0].released[0] == pytest.approx(32.769230769230774, rel=1e-12)
    np.testing.assert_allclose(result.params, [0.0020629235, 0.0044634766, 0.0008168638], atol=1e-9)


@pytest.mark.parametrize(
    ("points", "epsilon", "share", "threshold", "least", "slack", "widen", "cost"),
    [
        (300, 4.0, 0.2, 13.93332134, 271, 23, 1.27268545, 3.17014995),
        (1000, 1.0, 0.2, 49.36730574, 901, 79, 1.28153414, 3.20870667),
        (10_000, 1.0, 0.05, 98.73461147, 9642, 158, 1.09031166, 2.34330088),
        (100_000, 0.5, 0.02, 297.88005544, 97525, 475, 1.06361997, 2.22538114),
    ],
)
def test_the_plan_of_a_known_radius_has_its_reference_values(
    points, epsilon, share, threshold, least, slack, widen, cost
):
    rho = gaussian_mu(epsilon, 9e-7) ** 2 / 2
    plan = plan_stable_mean(points=points, replaced=True, rho=rho, bad_event_delta=1e-7, outliers=0.02)
    assert (plan.share, plan.numbers.least, plan.numbers.slack) == (share, least, slack)
    assert plan.numbers.threshold == pytest.approx(threshold, rel=1e-8)
    assert 1.0 / plan.numbers.inner == pytest.approx(widen, rel=1e-8)
    assert plan.cost == pytest.approx(cost, rel=1e-8)


def test_the_plan_of_a_search_has_its_reference_values():
    plan = plan_radius_search(points=5000, replaced=True, budget=Budget(1.0, 1e-6), radii=50, outliers=0.02)
    assert plan.search_epsilon == 0.25
    assert plan.search.epsilon_threshold == pytest.approx(0.09662205, rel=1e-7)
    assert plan.search.epsilon_queries == pytest.approx(0.15337795, rel=1e-7)
    assert plan.search.threshold == pytest.approx(265.06960004, rel=1e-8)
    assert (plan.numbers.least, plan.numbers.slack) == (4573, 327)
    assert 1.0 / plan.numbers.inner == pytest.approx(1.2338034, rel=1e-7)
    assert 1.0 / plan.noise_multiplier == pytest.approx(
        0.185595, rel=1e-3
    )  # a PLD, solved to 3e-4 from above
    event = Sequence((PureEvent(0.25), DeltaEvent(1e-7), GaussianEvent(1 / 0.185595)))
    assert accounting.delta(event, 1.0, "replace-one") == pytest.approx(1e-6, rel=1e-5)


def test_sparse_vector_numbers_have_their_reference_values():
    """R4."""
    test = SparseTest.of(0.3, tests=20, bad_event_delta=1e-7)
    assert test.epsilon_threshold == pytest.approx(0.11594646286929282, rel=1e-12)
    assert test.epsilon_queries == pytest.approx(0.18405353713070716, rel=1e-12)
    assert test.threshold_scale == pytest.approx(8.624670173227331, rel=2e-9)
    assert test.query_scale == pytest.approx(10.866403499649579, rel=2e-9)
    assert test.tail(100) == pytest.approx(1.283160740820107e-4, rel=1e-7)
    assert test.threshold == pytest.approx(210.92516445435706, rel=1e-8)


@pytest.mark.parametrize("replaced", [True, False])
def test_too_few_points_are_refused_with_the_number_that_is_enough(replaced):
    plan = {"replaced": replaced, "rho": gaussian_mu(1.0, 9e-7) ** 2 / 2, "bad_event_delta": 1e-7}
    with pytest.raises(BudgetTooSmall, match="100 points are too few") as caught:
        plan_stable_mean(points=100, **plan)
    enough = int(str(caught.value).split("at least ")[1].split(",")[0])
    assert plan_stable_mean(points=enough, **plan).numbers.least > enough / 2
    with pytest.raises(BudgetTooSmall, match="too few"):
        plan_stable_mean(points=enough - 1, **plan)


def test_a_release_that_cannot_work_is_refused_before_anything_is_paid():
    strict = replace(STABLE, test=GaussianTest(30.0, 1e-6))
    units = as_units(cluster())
    curator = LocalCurator(units, Ledger(Budget(9.0, 1e-5), "replace-one", plan=strict.event()))
    with pytest.raises(BudgetTooSmall, match="too few"):
        program(strict)(curator)
    assert len(curator.transcript) == 0


@pytest.mark.parametrize("mean", [SOFT, PAPER], ids=ONLY_REPLACED)
def test_means_for_a_fixed_number_of_points_refuse_units_that_come_and_go(mean):
    with pytest.raises(ValueError, match="use replace-one"):
        solve(program(mean), as_units(cluster(), "add-or-remove-one"), plan=mean.event())


@pytest.mark.parametrize("delta", [1e-2, 0.1])
def test_a_test_without_support_passes_as_rarely_as_it_paid_for(delta):
    """The score of scattered points is 0: wrong passes are draws of the noise alone."""
    strict = replace(STABLE, test=GaussianTest(4.0, delta))
    numbers = strict.numbers(400, replaced=True)
    noise = NoiseSource(7).normal((20_000,)) * 4.0
    passes = int(np.sum(noise >= numbers.threshold))
    assert passes <= 20_000 * delta + 4 * np.sqrt(20_000 * delta)


def test_a_quantile_of_distances():
    rows = cluster(1000)
    quantile = NormQuantile(quantile=0.5, smallest=1e-3, largest=50.0, steps=12, noise=Gaussian(5.0))
    units = as_units(rows)

    def run(curator):
        held = curator.hold(UserAverage(bound=50.0))
        found = quantile.release(curator, held, jnp.asarray([3.0, -2.0, 1.0]))
        return Result(np.asarray(found), Status.FINISHED, curator.transcript)

    result = solve(run, units, plan=quantile.event())
    exact = np.median(np.linalg.norm(rows - [3.0, -2.0, 1.0], axis=1))
    assert float(result.params) == pytest.approx(exact, rel=0.1)
    assert_replays(run, result, units.public)
    assert_rehearses(run, quantile.event(), units.public)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: replace(CLIPPED, radius=0.0), "radius must be positive"),
        (lambda: replace(STABLE, spread=np.inf), "spread must be positive"),
        (lambda: replace(STABLE, outliers=0.5), "outliers must be"),
        (lambda: replace(STABLE, fallback=-1.0), "fallback must be positive"),
        (lambda: replace(AUTO, radii=0), "radii must be"),
        (lambda: replace(SOFT, least_weight=3.0), "least_weight must be above 3"),
        (lambda: replace(PAPER, coupling_delta=1e-3), "coupling_delta must be"),
        (lambda: GaussianTest(1.0, 1.0), "bad_event_delta must be"),
        (
            lambda: NormQuantile(quantile=0.5, smallest=2.0, largest=1.0, steps=3, noise=Gaussian(1.0)),
            "below largest",
        ),
    ],
)
def test_bad_settings_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
