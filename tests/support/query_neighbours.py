"""Two neighbouring data sets with rows of every kind, for tests that one unit moves a query by no more than it may."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from scipy import sparse
from tests.support.turns import but_later

from privopt.data.units import Units
from privopt.mechanisms.noise import NoiseSource
from privopt.problems import losses

D, CAP = 3, 3


def own_loss(params, features, target):
    """Neither convex nor generalised linear; its gradient may overflow."""
    return jnp.log1p((features @ params - target) ** 2) + jnp.exp(params[0] * target)


LOSSES = {
    "logistic": losses.logistic,
    "squared": losses.squared,
    "softmax": losses.softmax(3),
    "huber": losses.huber(0.5),
    "own": losses.RecordLoss(own_loss),
}
CASES = [
    ("logistic", "dense"),
    ("squared", "sparse"),
    ("logistic", "users"),
    ("squared", "sparse users"),
    ("softmax", "dense"),
    ("huber", "dense"),
    ("own", "dense"),
    ("own", "users"),
]
# A kernel, one of sparse rows of users, several outputs, the plain path; others of the same paths wait for the audit.
CASES_IN_TURN = but_later(
    [("logistic", "dense"), ("squared", "sparse users"), ("softmax", "dense"), ("own", "users")], CASES
)

entries = st.one_of(
    st.floats(-2.0, 2.0), st.sampled_from([0.0, 1.0, -1.0, 1e30, -1e300, 1e-30, np.nan, np.inf, -np.inf])
)
records = st.tuples(st.lists(entries, min_size=D, max_size=D), st.one_of(st.just(1.0), entries))
points = st.sampled_from([np.zeros(D), np.array([0.3, -0.7, 0.2]), np.full(D, 40.0), np.full(D, -1e3)])


@dataclass(frozen=True)
class Pair:
    """The records of every unit of two neighbours; unit `changed` has others, or none, on the right."""

    units: list
    changed: int
    instead: list
    relation: str

    def sides(self):
        other = [*self.units]
        other[self.changed] = self.instead
        return self.units, other


PUBLIC = [(6, "add-or-remove-one"), (2, "replace-one"), (6, "replace-one")]


@st.composite
def pairs(draw, most_records, public):
    """Six units or two; a unit's records may repeat another's. Only the changed one may own more than the cap."""
    count, relation = draw(st.sampled_from(public))
    sizes = [1] * count if most_records == 1 else [draw(st.integers(0, CAP)) for _ in range(count)]
    pool = draw(st.lists(records, min_size=1, max_size=count))
    units = [[draw(st.sampled_from(pool)) for _ in range(size)] for size in sizes]
    changed = draw(st.integers(0, count - 1))
    fewest = 1 if most_records == 1 else 0
    instead = draw(st.lists(records, min_size=fewest, max_size=most_records))
    return Pair(units, changed, [] if relation == "add-or-remove-one" else instead, relation)


def as_units(owned, pair, layout):
    """The records behind a row bound of 1.5, padded to the same public number of units."""
    rows = [features for unit in owned for features, _ in unit]
    features = np.array(rows, np.float64).reshape(-1, D)
    targets = np.array([target for unit in owned for _, target in unit], np.float64)
    groups = np.repeat(np.arange(len(owned)), [len(unit) for unit in owned])
    with np.errstate(all="ignore"):
        return Units.from_arrays(
            sparse.csr_array(features) if "sparse" in layout else features,
            targets,
            relation=pair.relation,
            row_bound=1.5,
            n=len(pair.units),
            groups=groups if "users" in layout else None,
            max_records_per_user=CAP,
            noise=NoiseSource(1),
        )
