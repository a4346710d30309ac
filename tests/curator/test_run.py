"""A run that is paid for at once: what of it is marked where its units rest on a seed."""

import numpy as np
import pytest

from privopt.curator.run import Run
from privopt.data.units import Units
from privopt.ledger.account import Account
from privopt.ledger.amounts import Budget
from privopt.ledger.events import GaussianEvent, Parallel, repeat
from privopt.ledger.ledger import SEEDED
from privopt.mechanisms.noise import NoiseSource

ONE = GaussianEvent(9.0)
OPENED = {
    "the whole": (ONE, lambda run, units: run.curator(units)),
    "a part": (ONE, lambda run, units: run.curator(units, run.part("fit", ONE))),
    "an alternative": (ONE, lambda run, units: run.curator(units, run.one_of("refit", [ONE, ONE], 1))),
    "a split": (Parallel((ONE, ONE)), lambda run, units: run.split("parts", units, [4, 6])[1].curator(units)),
}


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
