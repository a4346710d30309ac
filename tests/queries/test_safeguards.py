"""Whoever writes a query of their own is held to its radius, and says why a sensitivity is small."""

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import pytest

from privopt.curator.audit import Audit
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.ledger.amounts import Budget
from privopt.ledger.events import EveryUnit, Poisson, Repeated
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.choice import ExponentialMechanism
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.grouped_loss import GroupedLoss
from privopt.problems.workload import Workload
from privopt.public import Public
from privopt.queries.base import MeanQuery, RecordSum, UnitSum, clip_to_ball, query, static
from privopt.queries.gradient_norms import AveragedGradient, GradientNorms, NormCounts, ValueNormCounts
from privopt.queries.groups import GroupShares
from privopt.queries.marginals import MarginalMeans
from privopt.queries.moments import (
    ColumnMagnitudes,
    NewtonDirection,
    SecondMoment,
    TargetMagnitudes,
    TopCurvature,
    TotalWeight,
    UsableUnits,
)
from privopt.queries.safeguards import (
    argues_its_sensitivity,
    clips_by_itself,
    is_ours,
    row_form_of,
    stated_sensitivity,
)
from privopt.queries.scores import HoldoutScores, VertexScores
from privopt.queries.slopes import ClippedGradient, ClippedGradientDifference, GradientNorm, MixedGradient

N, D, NOISE = 30, 3, Gaussian(50.0)
PUBLIC = Public(n=N, d=D)


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


def units(users=False, **options):
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(3 * N if users else N, D))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    if users:
        options.update(groups=np.repeat(np.arange(N), 3), max_records_per_user=3, user_weighting="user")
    return Units.from_arrays(rows, np.sign(rows[:, 0]) * 5.0, row_bound=1.0, **options)


def curator(data=None, **options):
    data = units() if data is None else data
    options = options or {"composition": "gaussian"}
    return LocalCurator(data, Ledger(Budget(100.0, 1e-6), data.public.relation, **options))


# The radius ----------------------------------------------------------------------------------------------------------


class Own(RecordSum):
    """Three times the row, and no clip."""

    def shape(self, public):
        return (public.d,)

    def record_contribution(self, private_features, private_target):
        return 3.0 * private_features

    def clip_unit(self, private_vector):
        return private_vector


@query
class Unclipped(Own):
    bound: float = 0.5

    def radius(self):
        return self.bound


@query
class UnclippedLargest(Unclipped):
    norm: ClassVar[str] = "linf"


@query
class UnclippedRange(Unclipped):
    norm: ClassVar[str] = "range"


@query
class UnclippedAbsolute(Unclipped):
    norm: ClassVar[str] = "l1"


@query
class UnclippedUnit(UnitSum):
    def radius(self):
        return 0.5

    def shape(self, public):
        return (public.d,)

    def unit_contribution(self, private_features, private_targets, private_mask, private_weight):
        return 1e200 * jnp.sum(private_features, axis=0)

    def clip_unit(self, private_vector):
        return private_vector


LENGTHS = {
    "l2": lambda v: np.linalg.norm(v, axis=1),
    "linf": lambda v: np.abs(v).max(axis=1),
    "l1": lambda v: np.abs(v).sum(axis=1),
    "range": lambda v: np.maximum(np.abs(v).max(axis=1), v.max(axis=1) - v.min(axis=1)),
}


@pytest.mark.later(
    "Unclipped-records",
    "UnclippedAbsolute-records",
    "UnclippedLargest-records",
    "UnclippedRange-users",
    "UnclippedUnit-records",
)
@pytest.mark.parametrize("users", [False, True], ids=["records", "users"])
@pytest.mark.parametrize(
    "kind", [Unclipped, UnclippedLargest, UnclippedRange, UnclippedAbsolute, UnclippedUnit]
)
def test_a_contribution_that_its_clip_leaves_too_long_is_scaled_to_the_radius(kind, users):
    engine = InProcessEngine(units(users=users))
    each = engine.gather(kind())
    lengths = LENGTHS[kind.norm](each)
    assert lengths.max() <= 0.5
    assert lengths.max() > 0.5 * (1 - 1e-8)
    np.testing.assert_allclose(engine.clipped_sum(kind()), each.sum(axis=0), rtol=1e-12)


@pytest.mark.later("UnclippedAbsolute", "UnclippedUnit")
@pytest.mark.parametrize(
    "kind", [Unclipped, UnclippedLargest, UnclippedRange, UnclippedAbsolute, UnclippedUnit]
)
def test_no_contribution_is_too_large_to_be_scaled(kind):
    """Beyond 4.5e307 the reciprocal of a number is subnormal, which compiled code takes for 0."""

    @query
    class Huge(kind):
        size: float = 1.0

        def record_contribution(self, private_features, private_target):
            return self.size * jnp.sign(private_features)

        def unit_contribution(self, private_features, private_targets, private_mask, private_weight):
            return self.size * jnp.sign(private_features[0])

    engine = InProcessEngine(units())
    for size in (1e200, 4.4e307, 4.6e307, 1.6e308):
        assert LENGTHS[kind.norm](engine.gather(Huge(size=size))).max() <= 0.5


@pytest.mark.parametrize("radius", [0.0, 1e-200, np.nan, -1.0])
def test_at_a_radius_that_is_none_a_contribution_is_zero(radius):
    assert np.all(InProcessEngine(units()).gather(Unclipped(bound=radius)) == 0)


def test_with_the_noise_off_nothing_is_scaled():
    each = InProcessEngine(units()).gather(Unclipped(bound=np.inf))
    np.testing.assert_allclose(each, 3.0 * units().private_features.astype(np.float64), rtol=1e-12)


def test_one_unit_moves_the_release_of_an_unclipped_query_by_no_more_than_is_stated():
    left, right = units(), units()
    right.private_features[4] *= -1.0
    audit = Audit(left, right, Ledger(Budget(9.0, 1e-6), "replace-one", composition="gaussian"))
    audit.release(Unclipped(), NOISE)
    assert 0.999 < audit.moves[0][1] <= 1.0


def test_a_compiled_loop_holds_the_radius_too():
    def step(state, release):
        return state + release(Unclipped(bound=jnp.asarray(1e-3)), Gaussian(0.01), Poisson(0.5))

    plan = Repeated(Poisson(0.5).event(Gaussian(0.01).event()), 4)
    data = units()
    open_one = LocalCurator(data, Ledger(Budget(1e9, 1e-6), "replace-one", plan=plan))
    total = open_one.iterate(step, jnp.zeros(D), 4)
    # Unclipped rows of length 3 would add up to about 0.5 in every step.
    assert float(jnp.max(jnp.abs(total))) < 0.05


# The row form --------------------------------------------------------------------------------------------------------


@query
class SmallerRadius(ClippedGradient):
    """A subclass that promises less than the row form it inherits."""

    def radius(self):
        return 0.1 * self.clip


@query
class LongerForm(ClippedGradient):
    """A row form of somebody's own that clips at another radius."""

    kernel: bool = static()

    def row_form(self, public):
        form = super().row_form(public)
        return dataclasses.replace(form, radius=10.0, kernel=form.kernel if self.kernel else None)


@query
class FormInAnotherNorm(ClippedGradient):
    """A row form that clips the largest entry, where the radius is one of the l2 norm."""

    def row_form(self, public):
        return dataclasses.replace(super().row_form(public), norm="linf")


@query
class SmallerMixture(MixedGradient):
    """A mixture of a smaller radius, with the row form of the library's."""

    def radius(self):
        return 0.1 * self.clip

    def row_form(self, public):
        return dataclasses.replace(super().row_form(public), radius=self.radius())


POINT = {"loss": losses.squared, "at": np.ones(D), "clip": 1.0}
FORMS = {
    "inherited": (SmallerRadius(**POINT), 0.1),
    "longer, kernel": (LongerForm(**POINT, kernel=True), 1.0),
    "longer, blocks": (LongerForm(**POINT, kernel=False), 1.0),
    "another norm": (FormInAnotherNorm(**POINT), 1.0),
    "mixture": (SmallerMixture(**POINT, previous=np.zeros(D), change_clip=1.0, gain=0.5), 0.1),
}


@pytest.mark.at_once(
    "inherited-records", "longer, blocks-records", "longer, kernel-records", "longer, kernel-users"
)
@pytest.mark.parametrize("users", [False, True], ids=["records", "users"])
@pytest.mark.parametrize("name", FORMS)
def test_no_row_form_takes_a_contribution_beyond_the_radius_of_its_query(name, users):
    asked, radius = FORMS[name]
    engine = InProcessEngine(units(users=users))
    lengths = [np.linalg.norm(engine.clipped_sum(asked, np.array([unit]))) for unit in range(N)]
    assert max(lengths) <= radius
    assert max(lengths) > radius * (1 - 1e-6)


def test_the_library_s_own_queries_are_computed_by_their_own_forms():
    """Nothing is added to the fast paths: the guard returns what the class states."""
    for kind in (ClippedGradient, GradientNorm):
        asked = kind(**POINT)
        form = row_form_of(asked, PUBLIC)
        assert form.kernel is not None
        assert form.radius == asked.clip
        assert clips_by_itself(kind)
        assert argues_its_sensitivity(kind)


# The sensitivity -----------------------------------------------------------------------------------------------------


@query
class Understated(ClippedGradient):
    share: float = 0.5

    def sensitivity(self, public, sampling=EveryUnit()):
        return self.share * MeanQuery.sensitivity(self, public, sampling)


@query
class Argued(Understated):
    sensitivity_argument: ClassVar[str] = (
        "Half of the records are copies of the other half, as everybody knows."
    )


@query
class NothingSaid(Understated):
    sensitivity_argument: ClassVar[str] = "  "


@query
class ArgumentOfAnother(Argued):
    """It inherits an argument about what it no longer computes."""

    def record_contribution(self, private_features, private_target):
        return private_features


@query
class SteeperGradient(ClippedGradient):
    """Its slope is not that of the loss on which the inherited sensitivity rests."""

    def record_contribution(self, private_features, private_target):
        return 9.0 * super().record_contribution(private_features, private_target)


LOGISTIC = {"loss": losses.logistic, "at": np.zeros(D), "clip": 3.0}


@pytest.mark.parametrize("kind", [Understated, NothingSaid, ArgumentOfAnother, SteeperGradient])
def test_a_sensitivity_below_what_the_radius_allows_is_refused_without_an_argument(kind):
    asked, where = kind(**LOGISTIC), curator()
    with pytest.raises(ValueError, match="or say why less is enough in `sensitivity_argument`"):
        where.release(asked, NOISE)
    assert where.ledger.spent == 0.0
    stream_like = curator(plan=Repeated(Poisson(0.5).event(NOISE.event()), 2))
    if kind is not SteeperGradient:  # for a sample its sensitivity is that of the clip
        with pytest.raises(ValueError, match="or say why less is enough"):
            stream_like.iterate(lambda w, release: w - release(asked, NOISE, Poisson(0.5)), jnp.zeros(D), 2)
    assert all(line.released is None for line in stream_like.transcript)


def test_a_sensitivity_that_is_argued_for_or_not_below_is_taken():
    curator().release(Argued(**LOGISTIC), NOISE)
    for share in (1.0, 3.0):
        curator().release(Understated(**LOGISTIC, share=share), NOISE)
    with pytest.raises(ValueError, match="states the sensitivity nan"):
        curator().release(Understated(**LOGISTIC, share=np.nan), NOISE)


ROW = np.full(D, 0.1)
BELOW: dict[type[MeanQuery], Any] = {
    ClippedGradient: ClippedGradient(**LOGISTIC),
    GradientNorm: GradientNorm(**LOGISTIC),
    AveragedGradient: AveragedGradient(loss=losses.logistic, points=np.zeros((2, D)), clip=3.0),
    GradientNorms: GradientNorms(loss=losses.logistic, points=np.zeros((2, D)), clip=3.0),
    MixedGradient: MixedGradient(**LOGISTIC, previous=np.ones(D), change_clip=1.0, gain=0.2),
    SecondMoment: SecondMoment(row_bound=1.0),
    TopCurvature: TopCurvature(row_bound=1.0),
    NewtonDirection: NewtonDirection(
        loss=losses.logistic, at=ROW, gradient=ROW, ridge=np.ones(D), damping=1.0, clip=1.0, model="hessian"
    ),
    ColumnMagnitudes: ColumnMagnitudes(levels=3, columns=D),
    TargetMagnitudes: TargetMagnitudes(largest=20.0),
    TotalWeight: TotalWeight(),
    UsableUnits: UsableUnits(),
    GroupShares: GroupShares(loss=GroupedLoss(losses.logistic, 3)),
    MarginalMeans: MarginalMeans(workload=Workload((3, 2), sets=((0,), (0, 1)))),
}

OF_ANOTHER_NORM = {
    NormCounts,
    ValueNormCounts,
}  # a radius in l_inf, a sensitivity in the range, which it does not bound


@pytest.mark.later("AveragedGradient", "GradientNorms")
@pytest.mark.parametrize("kind", BELOW, ids=lambda kind: kind.__name__)
def test_each_query_that_states_less_says_why_in_its_own_class(kind):
    asked = BELOW[kind]
    assert float(asked.sensitivity(PUBLIC)) < float(MeanQuery.sensitivity(asked, PUBLIC)) * (1 - 1e-6)
    argument = vars(kind)["sensitivity_argument"]
    assert argument.endswith(".")
    assert len(argument.split()) > 8
    assert "Privacy:" in kind.__doc__


def test_no_other_query_of_the_library_declares_an_argument():
    def below(kind):
        return {kind}.union(*(below(one) for one in kind.__subclasses__()))

    library = {kind for kind in below(MeanQuery) if is_ours(kind)}
    arguing = {kind for kind in library if vars(kind).get("sensitivity_argument")}
    assert arguing == set(BELOW) | OF_ANOTHER_NORM
    assert {ClippedGradientDifference, VertexScores, HoldoutScores} <= library


# Shortcuts, norms and shapes ------------------------------------------------------------------------------------------


@query
class TighterMoment(SecondMoment):
    sensitivity_argument: ClassVar[str] = "It clips to a hundredth of the radius."

    def clip_unit(self, private_vector):
        return clip_to_ball(private_vector, 0.01 * self.radius())

    def sensitivity(self, public, sampling=EveryUnit()):
        return 0.01 * MeanQuery.sensitivity(self, public, sampling)


@query
class TighterNorms(GradientNorms):
    sensitivity_argument: ClassVar[str] = "It clips each gradient to a tenth of the clip."

    def radius(self):
        return 0.2 * self.clip

    def clip_unit(self, private_vector):
        return jnp.stack([clip_to_ball(one, 0.1 * self.clip) for one in private_vector.T], axis=1)

    def sensitivity(self, public, sampling=EveryUnit()):
        return MeanQuery.sensitivity(self, public, sampling)


FAR = np.full((1, D), 20.0)


@pytest.mark.later("asked0-mechanism0")
@pytest.mark.parametrize(
    ("asked", "mechanism"),
    [
        (TighterMoment(row_bound=1.0), NOISE),
        (
            TighterNorms(loss=losses.logistic, points=np.concatenate([FAR, -FAR]), clip=1.0),
            ExponentialMechanism(0.1),
        ),
    ],
)
def test_no_shortcut_of_the_engine_stands_for_a_class_that_clips_in_a_way_of_its_own(asked, mechanism):
    rows, targets, owners = np.ones((N, D)), np.ones(N), None
    other_rows, other_targets = rows.copy(), targets.copy()
    other_targets[3] = -1.0
    if isinstance(asked, TighterNorms):
        owners = np.arange(N)  # records are summed by the row form in any case
    else:
        other_rows[3] = (0.7, -0.7, 0.0)
    left, right = (
        Units.from_arrays(*sides, row_bound=1.0, groups=owners, max_records_per_user=1)
        for sides in ((rows, targets), (other_rows, other_targets))
    )
    audit = Audit(left, right, Ledger(Budget(9.0, 1e-6), "replace-one", composition="zcdp"))
    audit.release(asked, mechanism)
    assert 0.4 < audit.moves[0][1] <= 1.0


@query
class Peaks(Own):
    radius_norm: ClassVar[str] = "linf"

    def radius(self):
        return 1.0

    def clip_unit(self, private_vector):
        return jnp.clip(private_vector, -1.0, 1.0)


@query
class PeaksOnly(Peaks):
    norm: ClassVar[str] = "linf"


def test_a_radius_in_a_norm_that_does_not_bound_the_one_of_the_sensitivity_is_refused():
    where = curator()
    with pytest.raises(ValueError, match="linf norm, which does not bound the l2 norm"):
        where.release(Peaks(), NOISE)
    assert where.ledger.spent == 0.0
    assert stated_sensitivity(PeaksOnly(), PUBLIC, EveryUnit()) == pytest.approx(2.0 / N)


@query
class OneNumber(Own):
    def shape(self, public):
        return ()

    def radius(self):
        return 1.0


def test_a_query_that_states_another_shape_than_it_has_is_refused_before_it_is_charged():
    plan = Repeated(Poisson(0.5).event(NOISE.event()), 2)
    where = curator(plan=plan)
    with pytest.raises(ValueError, match=r"states the shape \(\), but its value has shape \(3,\)"):
        where.iterate(lambda w, release: w + release(OneNumber(), NOISE, Poisson(0.5)), jnp.zeros(D), 2)
    with pytest.raises(ValueError, match="noise is drawn in the shape that is stated"):
        where.release(OneNumber(), NOISE, Poisson(0.5))
    assert len(where.transcript) == 0
    assert where.ledger.spent_epsilon() == 0.0


@query
class FlatForm(ClippedGradient):
    def row_form(self, public):
        return dataclasses.replace(super().row_form(public), shape=(public.d, 1))


def test_a_row_form_of_another_shape_than_the_contributions_is_refused():
    with pytest.raises(ValueError, match="both must compute the same"):
        curator().release(FlatForm(**LOGISTIC), NOISE)
