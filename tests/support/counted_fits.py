"""A child process that fits data of several sizes under one declared n, and prints what was compiled for each.

`python -m tests.support.counted_fits KIND ...` prints one line of JSON: for each kind and each number of records, what
`JAX_LOG_COMPILES` says of every program, with its shapes.
"""

import json
import logging
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse

from privopt import Budget, Units, minimize
from privopt.curator.local import LocalCurator
from privopt.ledger.events import Poisson
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.queries.scores import HeldCount
from privopt.queries.slopes import ClippedGradient
from privopt.queries.users import HeldMean

N = 300
COUNTS = (300, 299, 0)
FEATURES = np.random.default_rng(0).normal(size=(N, 4))
LABELS = (FEATURES[:, 0] > 0).astype(np.int64)


def units_of(count: int, kind: str) -> Units:
    """So many records, or users of two of them, where n = 300, or 150, is declared."""
    features = sparse.csr_array(FEATURES[:count]) if kind == "sparse" else FEATURES[:count]
    users = {"groups": np.arange(count) // 2, "max_records_per_user": 3} if kind == "users" else {}
    return Units.from_arrays(
        features,
        LABELS[:count],
        classes=[0, 1],
        row_bound=2.0,
        relation="add-or-remove-one",
        n=N // 2 if users else N,
        **users,
    )


def solved(count: int, layout: str, solver: str) -> None:
    """A run of one solver."""
    problem = Problem(losses.logistic, Ridge(0.1))
    minimize(problem, units_of(count, layout), budget=Budget(1.0, 1e-6), solver=solver, random_state=1)


def own(params, features, target):
    """A loss of somebody's own."""
    return jnp.log1p((features @ params - target) ** 2)


def of_own_loss(count: int, solver: str) -> None:
    """A run with it."""
    units, start = units_of(count, "dense"), jnp.zeros(4)
    minimize(own, units, budget=Budget(1.0, 1e-6), start=start, solver=solver, random_state=1)


def looped(curator) -> None:
    """Twenty steps on samples."""

    def step(state, release):
        query = ClippedGradient(loss=losses.logistic, at=state, clip=0.5)
        return state - release(query, Gaussian(40.0), Poisson(0.3))

    with double_precision():
        curator.iterate(step, jnp.zeros(4), 20)


def curator_of(count: int, engine: str = "fast") -> LocalCurator:
    return LocalCurator(
        units_of(count, "dense"), Unlimited("add-or-remove-one"), noise=NoiseSource(count), engine=engine
    )


def held(curator) -> None:
    """A statistic of points that are kept, and of points of groups."""
    with double_precision():
        asked = ClippedGradient(loss=losses.logistic, at=jnp.zeros(4), clip=0.5)
        for groups in (None, 5):
            points = curator.hold(asked, groups=groups)
            curator.release(HeldMean(held=points, centre=jnp.zeros(4), radius=0.3), Gaussian(40.0))
            curator.release(HeldCount(held=points, centre=jnp.zeros(4), radius=0.3), Gaussian(40.0))


KINDS: dict[str, Callable[[int], None]] = {
    "loop": lambda count: looped(curator_of(count)),
    "loop over a drawn block": lambda count: looped(curator_of(count).blocks(2)[0]),
    "loop over a drawn block of a drawn block": lambda count: looped(
        curator_of(count).blocks(2)[0].blocks(3)[1]
    ),
    "held points": lambda count: held(curator_of(count)),
    "held points of a drawn block": lambda count: held(curator_of(count).blocks(2)[1]),
    "stochastic-gradient-descent": lambda count: solved(count, "dense", "stochastic-gradient-descent"),
    "own loss, samples": lambda count: of_own_loss(count, "stochastic-gradient-descent"),
    "own loss": lambda count: of_own_loss(count, "gradient-descent"),
    **{
        f"{layout}, {solver}": lambda count, layout=layout, solver=solver: solved(count, layout, solver)
        for layout, solver in (
            ("dense", "whitening"),
            ("dense", "gradient-descent"),
            ("dense", "svrg"),
            ("dense", "continuous-spider"),
            ("dense", "objective-perturbation"),
            ("dense", "output-perturbation"),
            ("dense", "correlated-noise-descent"),
            ("sparse", "whitening"),
            ("users", "user-whitening"),
            ("users", "user-gradient-descent"),
            ("users", "user-federated-averaging"),
        )
    },
}


class Kept(logging.Handler):
    """What a compiler says."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what names a program and its shapes."""
        if (message := record.getMessage()).startswith("Compiling"):
            self.said.append(message)


def main(kinds: list[str]) -> None:
    """Fit."""
    kept = Kept()
    logger = logging.getLogger("jax")
    logger.addHandler(kept)
    logger.propagate = False
    jax.config.update("jax_log_compiles", True)
    found: dict[str, dict[int, list[str]]] = {}
    for kind in kinds:
        found[kind] = {}
        for count in COUNTS:
            jax.clear_caches()
            kept.said = []
            KINDS[kind](count)
            found[kind][count] = kept.said
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
