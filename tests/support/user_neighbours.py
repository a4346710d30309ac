"""Two neighbouring data sets of users in one table, and an audit of whatever a front end does with it.

The table holds everybody's records and two versions of the last user under two keys. Wherever a front end makes units
of it, the left side leaves out the second version and the right side the first, so that every query is evaluated on
both, after all the scaling, staging and splitting that a front end does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from privopt.curator.audit import Audit
from privopt.curator.run import Run
from privopt.data import user_keys
from privopt.data.places import Places
from privopt.data.record_source import Description, RecordSource
from privopt.data.units import Units
from privopt.engine import choose
from privopt.engine.in_process import InProcessEngine

OTHERS, EACH, WIDTH = 60, 4, 3  # other users, records of each, features
USERS = OTHERS + 1
VERSIONS = ("ordinary", "hostile")

HOSTILE: dict[str, tuple[Any, Any]] = {  # features and labels of the second version
    "nobody": (np.zeros((0, WIDTH)), []),
    "a million records": (np.tile([1.0, -1.0, 1.0], (10**6, 1)), np.zeros(10**6)),
    "ten thousand records": (np.tile([1.0, -1.0, 1.0], (10**4, 1)), np.zeros(10**4)),
    "NaN": (np.full((5, WIDTH), np.nan), np.ones(5)),
    "1e30": (np.full((5, WIDTH), 1e30), np.ones(5)),
    "the opposite": (np.tile([-1.0, 1.0, -1.0], (7, 1)), np.ones(7)),
    "wrong labels": (np.ones((5, WIDTH)), np.full(5, 17.0)),
    "labels that are NaN": (np.ones((5, WIDTH)), np.full(5, np.nan)),
}


def table_of(hostile: str) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[Any]]:
    """Features, labels and keys of everybody, and of both versions of the last user."""
    draw = np.random.default_rng(11)
    features = draw.uniform(-1, 1, (USERS * EACH, WIDTH))
    labels = (features @ [2.0, -1.0, 0.5] + draw.normal(0, 0.5, len(features)) > 0).astype(float)
    keys = [f"user {user}" for user in range(OTHERS) for _ in range(EACH)] + [VERSIONS[0]] * EACH
    more, marks = HOSTILE[hostile]
    return (
        np.concatenate([features, more]),
        np.concatenate([labels, marks]),
        np.array(keys + [VERSIONS[1]] * len(more), object),
    )


@contextmanager
def audited(*, absent: bool = False) -> Iterator[list[tuple[str, float]]]:
    """Every query that a front end makes within: its name, and how far it moved over its sensitivity.

    Args:
        absent: whether the neighbour lacks the last user altogether; then the left side has the hostile version.
    """
    moves: list[tuple[str, float]] = []
    twin: dict[int, Units] = {}
    alive: list[Units] = []
    load, part, open_curator = Units.from_arrays.__func__, Units.subset, Run.curator

    def paired(left: Units, right: Units) -> Units:
        alive.append(left)
        twin[id(left)] = right
        return left

    def from_arrays(cls: Any, features: Any, targets: Any = None, *, groups: Any, **given: Any) -> Units:
        codes = user_keys.user_codes(groups, features.shape[0])
        ordinary, second = codes == OTHERS, codes > OTHERS
        keep = (~ordinary, ~(ordinary | second)) if absent else (~second, ~ordinary)
        made = [
            load(
                cls,
                features[kept],
                targets if targets is None else targets[kept],
                groups=codes[kept],
                **given,
            )
            for kept in keep
        ]
        return paired(made[0], made[1])

    def read_units(source: RecordSource, description: Description, *, noise: Any = None) -> Units:
        """Of a table in files; that its records are read as arrays are is tested with the reader."""
        blocks = list(source.blocks(0, source.rows))
        features, targets, keys = (np.concatenate(column) for column in zip(*blocks, strict=True))
        return Units.from_arrays(features, targets, groups=keys, noise=noise, **description.arguments())

    def subset(self: Units, places: Places, size: int) -> Units:
        return paired(part(self, places, size), part(twin[id(self)], places, size))

    def curator(self: Run, data: Units | InProcessEngine, ledger: Any = None) -> Any:
        plain = open_curator(self, data, ledger)
        left = data if isinstance(data, Units) else data.units
        audit = Audit(left, twin[id(left)], plain.ledger, noise=self.noise)
        audit.moves, audit.transcript = moves, plain.transcript
        return audit

    with (
        patch.object(Units, "from_arrays", classmethod(from_arrays)),
        patch.object(choose, "read_units", read_units),
        patch.object(Units, "subset", subset),
        patch.object(Run, "curator", curator),
    ):
        yield moves
