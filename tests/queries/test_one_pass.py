"""One pass over the records: equal to a plain reference, and no record moves its end by more than is stated."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse
from tests.support.ordered_noise import logistic_slope, plain_pass

from privopt.curator.audit import Audit
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.events import GaussianEvent
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.constraints import Box, CentredBall, L2Ball
from privopt.problems.problem import Problem
from privopt.problems.regularisers import L1, ElasticNet, GroupLasso, Ridge
from privopt.proofs.contraction import largest_step
from privopt.proofs.one_pass import GrowingBatches, PassSteps
from privopt.public import Public, Relation
from privopt.queries.minimisers import NoisyPass, PassAverage
from privopt.queries.slopes import ClippedGradient

WIDE = Budget(1e9, 1e-6)
N, D = 24, 3
PROBLEMS = [
    Problem(losses.logistic),
    Problem(losses.logistic, Ridge(0.3)),
    Problem(losses.squared, ElasticNet(0.02, 0.1)),
    Problem(losses.huber(0.5), L1(0.02), L2Ball(0.4)),
    Problem(losses.smoothed_hinge(0.2), constraint=CentredBall((0.2, -0.1, 0.3), 0.5)),
    Problem(losses.quantile(0.3, 0.1), Ridge(0.1)),
    Problem(losses.poisson(1.0, 4.0)),
]
FEW = GrowingBatches(places=N, scale=6.0)


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(N, D))
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0) * (1 + 1e-12)
    return rows, np.sign(rng.normal(size=N))


def stored(rows, targets, storage="float64"):
    return Units.from_arrays(rows, targets, row_bound=1.0, n=N, storage=storage)


def average(problem, clip=0.4, share=1.0, start=None):
    step = share * largest_step(problem, Public(n=N, d=D))
    first = jnp.zeros(D) if start is None else jnp.asarray(start)
    return PassAverage(problem=problem, clip=clip, start=first, step_size=step)


def noisy(problem, clip=0.4, share=1.0, multiplier=2.0, batches=FEW):
    step = share * largest_step(problem, Public(n=N, d=D))
    return NoisyPass(
        problem=problem,
        clip=clip,
        start=jnp.zeros(D),
        step_size=step,
        noise_multiplier=multiplier,
        batches=batches,
    )


def led(query, public, multiplier=2.0):
    return query.mechanism(public) if isinstance(query, NoisyPass) else query.mechanism(multiplier, public)


def moved(query, left, right, seed=3, understate=0.0):
    """What the audit finds."""
    audit = Audit(left, right, Ledger(WIDE, "replace-one"), noise=NoiseSource(seed), understate=understate)
    audit.release(query, led(query, left.public))
    ((_, ratio),) = audit.moves
    return ratio


# What is computed ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "options"),
    [
        (Problem(losses.logistic), {}),
        (Problem(losses.logistic, Ridge(0.3)), {"ridge": 0.3}),
        (
            Problem(losses.logistic, ElasticNet(0.02, 0.1), L2Ball(0.3)),
            {"ridge": 0.1, "lasso": 0.02, "radius": 0.3},
        ),
    ],
)
@pytest.mark.parametrize("layout", ["dense", "csr"])
def test_a_pass_equals_a_plain_reference(problem, options, layout):
    rows, targets = arrays()
    order = np.random.default_rng(1).permutation(N)
    units = stored(sparse.csr_array(rows) if layout == "csr" else rows, targets)
    held = units.private_features, units.private_targets
    query = average(problem, start=[0.1, 0.2, -0.1])
    visited = plain_pass(
        logistic_slope,
        rows[order],
        targets[order],
        [0.1, 0.2, -0.1],
        clip=0.4,
        step=query.step_size,
        **options,
    )
    found = query.follow(units.public, *held, order, lambda count: np.zeros((count, D)))
    np.testing.assert_allclose(found, visited.mean(axis=0), rtol=1e-8)
    last, noise = noisy(problem), np.cos(np.arange(N * D)).reshape(N, D)
    used = iter(noise)
    visited = plain_pass(
        logistic_slope, rows[order], targets[order], np.zeros(D),
        clip=0.4, step=last.step_size, batches=FEW.sizes, noise=noise, **options,
    )  # fmt: skip
    found = last.follow(
        units.public, *held, order, lambda count: np.array([next(used) for _ in range(count)])
    )
    np.testing.assert_allclose(found, visited[-1], rtol=1e-8)


def test_the_clipped_slope_is_that_of_the_huberised_loss():
    rows, targets = arrays()
    for problem in PROBLEMS[:1] + PROBLEMS[2:]:
        bare = Problem(problem.loss)
        steps = PassSteps(problem=bare, public=Public(n=N, d=D), clip=0.3, step_size=0.1)
        at = np.array([0.5, -2.0, 1.0])
        for r in range(N):
            found = (at - steps.before_noise((rows, targets), np.array([r]), at)) / 0.1
            cap = 0.3 / np.linalg.norm(rows[r])
            slope = problem.loss.huberised_slope(jnp.asarray(rows[r] @ at), targets[r], cap)
            np.testing.assert_allclose(found, float(slope) * rows[r], rtol=1e-8, atol=1e-12)


def test_an_absent_record_keeps_its_place():
    rows, targets = arrays()
    order = np.random.default_rng(2).permutation(N)
    without = rows.copy()
    without[-3:] = 0.0
    query = average(PROBLEMS[1])
    public = Public(n=N, d=D)
    ends = [
        query.follow(public, x, y, order, None) for x, y in ((without, targets), (rows[:-3], targets[:-3]))
    ]
    np.testing.assert_array_equal(*ends)


def test_blocks_of_places_do_not_show(monkeypatch):
    rows, targets = arrays()
    order, noise = np.random.default_rng(2).permutation(N), np.random.default_rng(3).normal(size=(N, D))
    ends = []
    for entries in (2**20, 7 * D):
        monkeypatch.setattr("privopt.proofs.one_pass._BLOCK_ENTRIES", entries)
        used = iter(noise)
        ends.append(
            noisy(PROBLEMS[1]).follow(
                Public(n=N, d=D), rows, targets, order,
                lambda count, used=used: np.array([next(used) for _ in range(count)]).reshape(count, D),
            )
        )  # fmt: skip
    np.testing.assert_array_equal(*ends)


# What is stated ------------------------------------------------------------------------------------------------------


def test_batches_have_their_reference_values():
    scale = math.sqrt(2.0) * math.sqrt(20.0) / math.sqrt(0.1)  # L = 1, sigma = L / sqrt(20), rho = 0.1
    batches = GrowingBatches(places=102, scale=scale)
    assert batches.sizes.tolist() == [7, 7, 8, 8, 9, 9, 10, 12, 15, 20][-len(batches.sizes) :]
    assert GrowingBatches(places=105, scale=scale).sizes.tolist() == [7, 7, 8, 8, 9, 9, 10, 12, 15, 20]
    assert GrowingBatches(places=10, scale=scale).sizes.tolist() == [10]
    assert GrowingBatches(places=4, scale=0.0).sizes.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("scale", [0.3, 3.0, 17.0, 60.0])
def test_every_batch_is_hidden_by_what_is_paid(scale):
    """With noise sigma = 2 C z / scale, so that the sensitivity is at most sigma / z."""
    batches = GrowingBatches(places=5000, scale=scale)
    query = NoisyPass(
        problem=Problem(losses.logistic, constraint=L2Ball(1.0)),
        clip=1.0, start=jnp.zeros(D), step_size=0.1, noise_multiplier=1.0, batches=batches,
    )  # fmt: skip
    stated = query.sensitivity(Public(n=5000, d=D))
    assert stated <= max(2.0 / scale, 2.0) * (1 + 1e-9)
    assert int(np.sum(batches.sizes)) <= 5000
    larger = GrowingBatches(places=5000, scale=scale * (1 + 1e-6)).sizes
    assert len(larger) <= len(batches.sizes)


@pytest.mark.at_once("problem0-noisy", "problem1-average")
@pytest.mark.parametrize("make", [average, noisy])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_no_neighbour_moves_the_end_too_far(make, problem):
    rng, worst = np.random.default_rng(5), 0.0
    for seed in range(10):
        rows, targets = arrays(seed)
        if isinstance(problem.loss, losses.Poisson):
            targets = np.abs(targets) * rng.integers(0, 9, N)
        other, turned, place = rows.copy(), targets.copy(), rng.integers(N)
        kind = seed % 4
        other[place] = (-rows[place], 1e30 * rows[place], np.full(D, np.nan), np.zeros(D))[kind]
        turned[place] = (targets[place], -1e300, np.inf, 3.0)[kind]
        for share in (1.0, 0.2):
            for storage in ("float64", "float32"):
                query = make(problem, share=share)
                worst = max(
                    worst, moved(query, stored(rows, targets, storage), stored(other, turned, storage), seed)
                )
    assert 0.01 < worst <= 1.0


def tight_pair(place):
    """All records alike, with gradients as long as the clip wherever the iterate is; one of them turned."""
    rows, targets = np.tile([0.6, 0.0, 0.8], (N, 1)), np.full(N, 1e6)
    turned = targets.copy()
    turned[place] = -1e6
    return stored(rows, targets), stored(rows, turned)


@pytest.mark.parametrize("understate", [0.0, 0.002])
@pytest.mark.parametrize("make", [average, noisy])
def test_the_tight_pair_moves_by_exactly_what_is_stated(make, understate):
    """The record at the first place moves an average by 2 eta C, that of the dearest batch the noise by Delta."""
    query = make(Problem(losses.squared), share=0.5)
    ratios = [moved(query, *tight_pair(place), understate=understate) for place in range(N)]
    if understate:
        assert max(ratios) > 1.0
    else:
        assert 0.999 < max(ratios) <= 1.0


def test_the_price_of_a_noisy_pass_is_reached_by_the_first_batch():
    """Where gradients are constant the end is Gaussian: its shift over its spread is the price of batch 1, exactly."""
    query, public = noisy(Problem(losses.squared), multiplier=1.0), Public(n=N, d=D)
    sizes = query.batches.sizes
    price = [2.0 * 0.4 / (b * math.sqrt(len(sizes) - t)) for t, b in enumerate(sizes)]
    assert query.sensitivity(public) == pytest.approx(max(price), rel=1e-9)
    (left, right), order = tight_pair(0), np.arange(N)
    ends = [
        query.follow(public, side.private_features, side.private_targets, order, lambda k: np.zeros((k, D)))
        for side in (left, right)
    ]
    spread = query.step_size * math.sqrt(len(sizes))  # of the end, for noise of 1 a step
    assert float(np.linalg.norm(ends[0] - ends[1])) / spread == pytest.approx(price[0], rel=1e-8)


def test_noise_that_is_moved_leads_the_neighbour_to_the_same_end():
    """The audit's shifts are what the proof says: small, and enough."""
    query = noisy(PROBLEMS[1])
    rows, targets = arrays(1)
    turned = targets.copy()
    turned[4] = -turned[4]
    order, noise = np.random.default_rng(0).permutation(N), np.random.default_rng(1).normal(size=(N, D))
    used = iter(noise)
    public = Public(n=N, d=D)
    found = query.moved(
        public, (rows, targets), (rows, turned), order, lambda k: np.array([next(used) for _ in range(k)])
    )
    assert 0.0 < found <= query.sensitivity(public)


def test_a_step_that_is_too_long_expands_and_is_refused():
    problem = Problem(losses.squared)
    left, right = tight_pair(0)
    rows, order = np.tile([1.0, 0.0, 0.0], (N, 1)), np.arange(N)
    values, turned = np.zeros(N), np.zeros(N)
    turned[0] = 9.0
    too_long = PassAverage(problem=problem, clip=1.0, start=jnp.zeros(D), step_size=2.2)
    with pytest.raises(ValueError, match=r"at most 2 / \(L \+ mu\)"):
        too_long.sensitivity(left.public)
    w = np.zeros((2, D))
    for r in order:  # unclipped steps of this size
        for side, y in enumerate((values, turned)):
            w[side] = w[side] - 2.2 * (rows[r] @ w[side] - y[r]) * rows[r]
    assert np.linalg.norm(w[0] - w[1]) > 2.0 * 2.2 * 9.0
    del right


@pytest.mark.parametrize(
    ("problem", "public", "why"),
    [
        (Problem(losses.logistic), Public(n=9, d=D, relation=Relation.ADD_OR_REMOVE_ONE), "comes or goes"),
        (Problem(losses.logistic), Public(n=9, d=D, unit="user"), "a unit is a user"),
        (Problem(losses.softmax(3)), Public(n=9, d=D), "3 outputs"),
        (Problem(losses.RecordLoss(lambda w, a, y: 0.0)), Public(n=9, d=D), "convex loss of the library"),
        (Problem(losses.quantile(0.5)), Public(n=9, d=D), "has a kink"),
        (Problem(losses.logistic, GroupLasso(0.1, ((0, 1), (2,)))), Public(n=9, d=D), "know a ridge"),
        (Problem(losses.logistic, constraint=Box(-1.0, 1.0)), Public(n=9, d=D), "an l2 ball"),
    ],
)
@pytest.mark.parametrize("make", [average, noisy])
def test_what_the_proof_does_not_cover_is_refused(make, problem, public, why):
    query = make(Problem(losses.logistic))
    fields = {name: getattr(query, name) for name in ("clip", "start", "step_size")}
    if make is noisy:
        fields |= {"noise_multiplier": 1.0, "batches": FEW}
    with pytest.raises(ValueError, match=why):
        type(query)(problem=problem, **fields).sensitivity(public)


def test_no_other_mechanism_is_taken_and_the_mechanism_by_no_other_query():
    units = stored(*arrays())
    curator = LocalCurator(units, Ledger(WIDE, "replace-one"))
    query, other = average(PROBLEMS[0]), noisy(PROBLEMS[0])
    for asked, wrong in (
        (query, Gaussian(1.0)),
        (query, other.mechanism(units.public)),
        (other, query.mechanism(2.0, units.public)),
        (query, query.mechanism(1.0, Public(n=N + 1, d=D))),
        (other, noisy(PROBLEMS[0], multiplier=9.0).mechanism(units.public)),
    ):
        with pytest.raises(ValueError, match="drawn by the mechanism that the query makes"):
            curator.release(asked, wrong)
    gradient = ClippedGradient(loss=losses.logistic, at=jnp.zeros(D), clip=1.0)
    with pytest.raises(ValueError, match="is no pass over the records"):
        curator.release(gradient, query.mechanism(2.0, units.public))
    with pytest.raises(ValueError, match="a whole pass over the records"):
        curator.iterate(
            lambda w, release: release(query, query.mechanism(2.0, units.public)), jnp.zeros(D), 2
        )
    assert query.mechanism(2.0, units.public).event() == GaussianEvent(2.0)
    assert len(curator.transcript) == 0


def test_batches_that_do_not_fit_are_refused():
    query = noisy(PROBLEMS[0], batches=GrowingBatches(places=2 * N, scale=0.0))
    with pytest.raises(ValueError, match="all together at most"):
        query.sensitivity(Public(n=N, d=D))


def test_rounding_grows_with_the_length_of_the_path_and_is_refused_where_it_is_no_trifle():
    short, long = (Public(n=n, d=50) for n in (1000, 100_000))
    query = PassAverage(problem=Problem(losses.logistic), clip=1.0, start=jnp.zeros(50), step_size=8.0)
    assert 16.0 < query.sensitivity(short) < 16.001
    assert query.sensitivity(short) < query.sensitivity(long) < 16.1
    far = NoisyPass(
        problem=Problem(losses.logistic), clip=1.0, start=jnp.full(50, 1e15), step_size=8.0,
        noise_multiplier=1.0, batches=GrowingBatches(places=1000, scale=1.0),
    )  # fmt: skip
    with pytest.raises(ValueError, match="too long for double precision"):
        far.sensitivity(short)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300, 0.0])
def test_nothing_about_the_data_raises(value):
    units = stored(np.full((N, D), value), np.full(N, value))
    for query in (average(PROBLEMS[2]), noisy(PROBLEMS[2])):
        curator = LocalCurator(units, Ledger(WIDE, "replace-one"))
        assert np.all(np.isfinite(curator.release(query, led(query, units.public))))
