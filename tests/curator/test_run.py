"""A run that is paid for at once: what is marked where its units rest on a seed, and what its parts cost."""

import numpy as np
import pytest

from privopt.curator.run import Run
from privopt.data.units import Units
from privopt.errors import ArgumentError
from privopt.ledger.account import Account
from privopt.ledger.amounts import Budget
from privopt.ledger.events import GaussianEvent, Parallel, repeat, sequence
from privopt.ledger.ledger import SEEDED
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.prefix_sum import PrefixSum
from privopt.precision import double_precision
from privopt.queries.moments import ColumnMagnitudes

ONE = GaussianEvent(9.0)
OPENED = {
    "the whole": (ONE, lambda run, units: run.curator(units)),
    "a part": (ONE, lambda run, units: run.curator(units, run.part("fit", ONE))),
    "an alternative": (ONE, lambda run, units: run.curator(units, run.one_of("refit", [ONE, ONE], 1))),
    "a split": (Parallel((ONE, ONE)), lambda run, units: run.split("parts", units, [4, 6])[1].curator(units)),
}


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


def users(noise):
    rows = np.random.default_rng(1).normal(size=(20, 2))
    return Units.from_arrays(
        rows, row_bound=1.0, groups=np.arange(20) // 2, max_records_per_user=1, noise=noise
    )


@pytest.mark.parametrize("opened", OPENED)
@pytest.mark.parametrize("seeded", [True, False])
def test_units_whose_records_were_chosen_from_a_seed_mark_the_run_and_its_account(opened, seeded):
    event, open_on = OPENED[opened]
    units, account = users(NoiseSource(3 if seeded else None)), Account(5.0, 1e-4)
    run = Run("fit", repeat(event, 1), Budget(3.0, 1e-5), units.public, noise=NoiseSource(), account=account)
    curator = open_on(run, units)
    assert curator.transcript.seeded is run.ledger.seeded is run.seeded is seeded
    assert ("mark" in account.to_dict()) is seeded
    assert (SEEDED in str(account)) is seeded


def test_releases_on_the_parts_of_a_split_cost_as_much_as_the_dearest_part():
    dearer = GaussianEvent(4.0)
    units, plan = users(NoiseSource()), Parallel((dearer, sequence((ONE, ONE))))
    run = Run("search", plan, Budget(3.0, 1e-5), units.public, noise=NoiseSource())
    parts = run.split("parts", units, [4, 6])
    for part, noises in zip(parts, ([4.0], [9.0, 9.0]), strict=True):
        for noise in noises:  # a curator each, as for rows that are stored in different ways
            part.curator(units).release(ColumnMagnitudes(levels=2, columns=2), Gaussian(noise))
    assert run.transcript.epsilon(1e-5) == pytest.approx(run.ledger.spent_epsilon(1e-5), rel=1e-9)
    assert run.ledger.spent_epsilon(1e-5) == pytest.approx(run.ledger.epsilon(1e-5), rel=1e-9)


def test_a_stream_of_one_part_takes_nothing_of_another_that_has_not_paid():
    stream = PrefixSum(strategy=np.eye(2), noise_multiplier=9.0)
    units, asked = users(NoiseSource()), ColumnMagnitudes(levels=2, columns=2)
    run = Run(
        "streams", Parallel((stream.event(), ONE)), Budget(3.0, 1e-5), units.public, noise=NoiseSource()
    )
    first, second = run.split("parts", units, [4, 6])
    opened = first.curator(units).stream("sums", stream, asked.shape(units.public))
    with pytest.raises(ValueError, match="no other curator's units have paid for it"):
        opened.ask("add", asked, on=second.curator(units))


def test_a_stage_whose_users_may_stand_at_other_places_is_refused():
    rows, keys = np.linspace(0.01, 1.0, 80)[:, None], np.arange(80) // 2
    units = Units.from_arrays(rows, row_bound=1.0, groups=keys, max_records_per_user=1)
    run = Run("search", Parallel((ONE, ONE)), Budget(3.0, 1e-5), units.public, noise=NoiseSource())
    part = run.split("parts", units, [20, 20])[0]
    part.curator(Units.from_arrays(rows**2, row_bound=2.0, groups=keys, max_records_per_user=1))
    for other in ({"max_records_per_user": 2}, {"n": 41}, {"n": 40, "relation": "add-or-remove-one"}):
        described = {"row_bound": 1.0, "groups": keys, "max_records_per_user": 1, **other}
        with pytest.raises(ArgumentError, match="same n, relation, unit and max_records_per_user"):
            part.curator(Units.from_arrays(rows, **described))
    with pytest.raises(ArgumentError, match="may stand in another part"):
        part.curator(Units.from_arrays(rows[:40], row_bound=1.0))
