"""Functions of held means: no unit moves one further than it states, and only its handle is ever seen."""

import dataclasses

import numpy as np
import pytest
from tests.contracts.queries import EVERY_FUNCTION_OF_A_MEAN, EVERY_QUERY, ROW_BOUND, D, concrete_queries
from tests.support.turns import in_turn

from privopt.curator.audit import Audit, distance
from privopt.curator.dry_run import DryRun
from privopt.curator.local import LocalCurator
from privopt.curator.replay import Replay
from privopt.data.units import Units
from privopt.errors import PlanMismatch
from privopt.games.gradients import Gradients
from privopt.ledger.amounts import Budget
from privopt.ledger.events import EveryUnit, Poisson
from privopt.ledger.ledger import Ledger
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.vertex_stream import VertexSampler
from privopt.precision import double_precision
from privopt.problems.saddle import BilinearGame
from privopt.public import Relation
from privopt.queries.base import FunctionOfMean, query, static
from privopt.queries.payoffs import PayoffGradient, PayoffMeans, PlayerGradient
from privopt.testing import check_query
from privopt.testing.queries import SLACK, quietly

RELATIONS = ("replace-one", "add-or-remove-one")
LAYOUTS = ("dense", "csr users")
N, SIZE = 12, 3
GAME = BilinearGame(rows=SIZE, columns=SIZE)


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


def check(case, pairs, layouts=LAYOUTS, storages=("float32", "float64")):
    """Hold a function of a mean to its sensitivity on hostile rows, or on neighbours of its own kind."""

    def asked(curator):
        return case.function(curator.hold_mean(case.held))

    if case.pair is None:
        check_query(asked, columns=D, row_bound=ROW_BOUND, layouts=layouts, storages=storages, pairs=pairs)
        return
    for relation in RELATIONS:
        for layout in layouts:
            for seed in range(pairs):
                rng = np.random.default_rng([seed, *f"{relation} {layout}".encode()])
                audit = Audit(*case.pair(rng, relation, layout), Unlimited(relation))
                with quietly(case.held, f"pair {seed}"):
                    assert audit.compare(asked(audit)) <= SLACK


@pytest.mark.later(
    "gaps of candidates, a matrix game-float64",
    "gaps of candidates-float32",
    "scores of a part-float64",
    "scores of a simplex-float32",
)
@pytest.mark.parametrize(("name", "storage"), in_turn(EVERY_FUNCTION_OF_A_MEAN, ("float32", "float64")))
def test_no_function_of_a_mean_moves_further_than_it_states(name, storage):
    check(EVERY_FUNCTION_OF_A_MEAN[name], 3, storages=(storage,))


@pytest.mark.audit
@pytest.mark.parametrize("name", EVERY_FUNCTION_OF_A_MEAN)
def test_no_function_of_a_mean_moves_further_on_many_rows(name):
    check(EVERY_FUNCTION_OF_A_MEAN[name], 50, ("dense", "csr", "dense users", "csr users"))


def test_every_function_of_a_mean_is_in_the_list():
    asked = {kind for kind in concrete_queries() if issubclass(kind, FunctionOfMean)}
    handles = DryRun(units_of(rows()).public)
    made = set()
    for case in EVERY_FUNCTION_OF_A_MEAN.values():
        made.add(type(case.function(handles.hold_mean(case.held))))
    assert made == asked


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_stated_range_is_attained_up_to_rounding(relation):
    """One record pays (1, -1, -1), nobody else anything: a statement 0.2 % too small would be caught."""
    corner = np.concatenate([[1.0, -1.0, 1.0], np.ones(SIZE)])
    left, right = np.zeros((N, 2 * SIZE)), np.zeros((N, 2 * SIZE))
    right[0], left[0] = corner, -corner * [-1, -1, -1, 1, 1, 1] if relation == "add-or-remove-one" else corner
    if relation == "replace-one":
        left[0, :SIZE] *= -1
    else:
        left[0] = 0.0
    values = []
    for x in (left, right):
        units = units_of(x, relation)
        curator = LocalCurator(units, Unlimited(units.public.relation))
        asked = PayoffGradient(
            mean=curator.hold_mean(PayoffMeans(game=GAME)), who="x", play=np.ones(SIZE) / SIZE
        )
        values.append(np.asarray(curator.private_value(asked, EveryUnit(), None)))
    moved = distance(*values, "range")
    assert 0.999 < moved / float(asked.sensitivity(units.public)) <= 1.0


def rows(seed=0):
    return np.random.default_rng(seed).choice([-1.0, 1.0], (N, 2 * SIZE))


def units_of(x, relation="replace-one"):
    return Units.from_arrays(x, relation=relation, row_bound=3.0, n=N, storage="float64")


def program(curator):
    """Hold the payoffs, release one gradient, draw vertices from two more."""
    mean = curator.hold_mean(PayoffMeans(game=GAME))
    sampler = VertexSampler.weighted_average(
        step_weights=[1.0],
        inverse_temperatures=[0.0, 1.0],
        draws=2,
        half_range=GAME.half_range,
        sensitivities=1.01 * 2.0 * curator.public.relation.factor * GAME.half_range / curator.public.n,
        **({"vertices": SIZE} if "vertices" in VertexSampler.weighted_average.__annotations__ else {}),
    )
    stream = curator.stream("plays", sampler, (SIZE,))
    first = stream.ask("draw")
    stream.ask("add", PayoffGradient(mean=mean, who="x", play=np.bincount(first, minlength=SIZE) / 2.0))
    return stream.ask("draw")


def test_a_program_replays_and_audits_and_rehearses():
    units, ledger = units_of(rows()), Unlimited(Relation.REPLACE_ONE)
    curator = LocalCurator(units, ledger, noise=NoiseSource(seed=1))
    drawn = program(curator)
    again = program(Replay(curator.transcript, units.public))
    np.testing.assert_array_equal(drawn, again)
    assert program(DryRun(units.public)).shape == drawn.shape
    other = rows()
    other[3] = -other[3]
    audit = Audit(units, units_of(other), Unlimited(Relation.REPLACE_ONE), noise=NoiseSource(seed=1))
    program(audit)
    assert {name for name, _ in audit.moves} == {"PayoffMeans", "PayoffGradient"}
    assert max(moved for _, moved in audit.moves) <= 1.0


def test_holding_is_free_and_shows_nothing():
    units = units_of(rows())
    curator = LocalCurator(
        units, Ledger(Budget(1.0, 1e-6), units.public.relation, plan=Gaussian(5.0).event())
    )
    mean = curator.hold_mean(PayoffMeans(game=GAME))
    assert repr(mean) == "<private>"
    assert len(curator.transcript) == 0
    assert not any(isinstance(value, np.ndarray) and value.size > 1 for value in vars(mean).values())
    curator.release(PayoffMeans(game=GAME), Gaussian(5.0))
    with pytest.raises(PlanMismatch, match="0 of it are left"):
        curator.release(PayoffMeans(game=GAME), Gaussian(5.0))


def test_a_mean_is_answered_about_by_the_curator_that_holds_it():
    units = units_of(rows())
    curator, other = (LocalCurator(units, Unlimited(Relation.REPLACE_ONE)) for _ in range(2))
    mean = curator.hold_mean(PayoffMeans(game=GAME))
    asked = PayoffGradient(mean=mean, who="x", play=np.ones(SIZE) / SIZE)
    with pytest.raises(ValueError, match="another curator holds"):
        other.private_value(asked, EveryUnit(), None)
    assert curator.allot("inner", share=0.5).private_value(asked, EveryUnit(), None).shape == (SIZE,)


def test_a_function_of_a_mean_is_not_charged_for_a_sample():
    units = units_of(rows())
    curator = LocalCurator(units, Unlimited(Relation.REPLACE_ONE))
    mean = curator.hold_mean(PayoffMeans(game=GAME))

    @query
    class Entries(FunctionOfMean):
        """All entries."""

        mean: object = static()

        def sensitivity(self, public, sampling=EveryUnit()):
            return self.mean.sensitivity

        def shape(self, public):
            return self.mean.shape

        def value(self, private_mean):
            return private_mean

    assert np.shape(curator.release(Entries(mean=mean), Gaussian(1.0))) == (SIZE * SIZE,)
    with pytest.raises(ValueError, match="computed on every unit"):
        curator.release(Entries(mean=mean), Gaussian(1.0), Poisson(0.1))


def test_a_gradient_of_something_else_that_is_held_is_refused():
    units = units_of(rows())
    curator = LocalCurator(units, Unlimited(Relation.REPLACE_ONE))
    mean = curator.hold_mean(EVERY_QUERY["average of a unit"])
    with pytest.raises(TypeError, match="is a function of PayoffMeans"):
        PayoffGradient(mean=mean, who="x", play=np.ones(3)).sensitivity(units.public)


@query
class TwoForOne(FunctionOfMean):
    """Says that it is a number, and is two."""

    mean: object = static()

    def sensitivity(self, public, sampling=EveryUnit()):
        return self.mean.sensitivity

    def shape(self, public):
        return ()

    def value(self, private_mean):
        return private_mean[:2]


def test_a_value_of_another_shape_than_stated_is_not_released():
    curator = LocalCurator(units_of(rows()), Unlimited(Relation.REPLACE_ONE))
    mean = curator.hold_mean(PayoffMeans(game=GAME))
    with pytest.raises(ValueError, match=r"states the shape \(\), but its value has another"):
        curator.release(TwoForOne(mean=mean), Gaussian(1.0))


def test_a_handle_cannot_be_told_another_sensitivity():
    curator = LocalCurator(units_of(rows()), Unlimited(Relation.REPLACE_ONE))
    mean = curator.hold_mean(PayoffMeans(game=GAME))
    with pytest.raises(dataclasses.FrozenInstanceError, match="sensitivity"):
        mean.sensitivity = 0.0


class Understated(BilinearGame):
    """A game of somebody's own, which states too small a half-range."""

    @property
    def half_range(self):
        return 0.01


def test_a_half_range_that_nothing_enforces_is_not_believed():
    curator = LocalCurator(units_of(rows()), Unlimited(Relation.REPLACE_ONE))
    game = Understated(rows=SIZE, columns=SIZE)
    mean = curator.hold_mean(PayoffMeans(game=game))
    with pytest.raises(TypeError, match="which no clip enforces"):
        PayoffGradient(mean=mean, who="x", play=np.ones(SIZE) / SIZE).sensitivity(curator.public)
    assert Gradients.on(curator, game).held is None


def test_what_a_stream_refuses_has_entered_nothing():
    """A refused item must not shift the ones after it, which other units have paid for."""
    units = units_of(rows())
    curator = LocalCurator(units, Unlimited(Relation.REPLACE_ONE))
    sampler = VertexSampler(
        item_weights=(1.0, 1.0, 0.0),
        temperatures=(1.0, 1.0, 1.0),
        draws=(1, 1, 1),
        participation=((0,), (1, 2)),
        largest_item=10.0,
    )
    stream, blocks = curator.stream("plays", sampler, (SIZE,)), curator.blocks(2)
    other = curator.hold_mean(PayoffMeans(game=GAME))
    asked = PayoffGradient(mean=other, who="x", play=np.ones(SIZE) / SIZE)
    gradient = PlayerGradient(
        game=GAME, who="x", x=np.ones(SIZE) / SIZE, y=np.ones(SIZE) / SIZE, half_range=1.0
    )
    stream.ask("draw")
    with pytest.raises(ValueError, match="another curator holds"):
        stream.ask("add", asked, on=blocks[0])
    stream.ask("add", gradient, on=blocks[1])
    stream.ask("draw")
    with pytest.raises(ValueError, match="would hold units of earlier items"):
        stream.ask("add", gradient, on=blocks[1])
