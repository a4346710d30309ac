"""The records of the demo: the RAND Health Insurance Experiment, described from its documentation.

The 20 190 person-years ship with statsmodels. Everything said about them here is public: their number and the columns'
ranges come from the documentation, not from the rows. A record is one year of one person; this copy names no persons.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.tables import TabularEncoder

RECORDS = 20_190  # person-years, from the data's documentation
TRAINING = 16_152  # four fifths
SPLIT_SEED = 20  # public randomness: which records are held out
# More visits in a year count as so many: a record then moves the counts less, and less noise is needed.
MOST_VISITS = 20

# Ranges from the documentation or plausibility: coinsurance is at most 100 per cent, the incentive payment and the
# maximum expenditure at most a few thousand dollars, the index of chronic diseases at most 60.
SCHEMA: dict[str, Any] = {
    "target": "mdvis",
    "columns": {
        "mdvis": {"kind": "num", "low": 0, "high": MOST_VISITS},
        "lncoins": {"kind": "num", "low": 0, "high": 4.62},
        "idp": {"kind": "flag"},
        "lpi": {"kind": "num", "low": 0, "high": 8},
        "fmde": {"kind": "num", "low": 0, "high": 9},
        "physlm": {"kind": "num", "low": 0, "high": 1},
        "disea": {"kind": "num", "low": 0, "high": 60},
        "hlthg": {"kind": "flag"},
        "hlthf": {"kind": "flag"},
        "hlthp": {"kind": "flag"},
    },
}
MEANING = {
    "lncoins": "coinsurance (log)",
    "idp": "individual deductible",
    "lpi": "incentive payment (log)",
    "fmde": "maximum expenditure (log)",
    "physlm": "physical limitation",
    "disea": "chronic diseases",
    "hlthg": "health: good",
    "hlthf": "health: fair",
    "hlthp": "health: poor",
}


@dataclass(frozen=True, kw_only=True)
class Records:
    """Encoded person-years and their visits."""

    private_features: NDArray[np.float32]
    private_visits: NDArray[np.float64]

    def private_targets(self, *, counts: bool) -> NDArray[np.float64]:
        """Visits, or 1 for any visit and 0 for none."""
        return self.private_visits if counts else (self.private_visits > 0).astype(np.float64)


def load() -> tuple[Records, Records]:
    """The training and the held-out records: the first look at the data."""
    from statsmodels.datasets import randhie

    private_table: Any = randhie.load_pandas().data
    order = np.random.default_rng(SPLIT_SEED).permutation(RECORDS)
    return _encoded(private_table.iloc[order[:TRAINING]]), _encoded(private_table.iloc[order[TRAINING:]])


def _encoded(private_table: Any) -> Records:
    """Rows as features, by the public schema alone."""
    return Records(
        private_features=TabularEncoder(SCHEMA).fit(private_table).transform(private_table),
        private_visits=private_table["mdvis"].to_numpy(dtype=np.float64),
    )
