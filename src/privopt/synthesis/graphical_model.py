"""Private-PGM (the package `mbi`) fitted to released marginals: another model from the same releases."""

import importlib
import importlib.util
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.precision import double_precision
from privopt.problems.workload import Workload
from privopt.synthesis.measured import ReleasedMarginal

LARGEST_MODEL = 80.0  # megabytes of the junction tree's tables
_RECORDS = 1e4  # that the model is fitted to: mbi counts records, and takes small weights for none
ITERATIONS = 1000


def check_installed() -> None:
    """Refuse where the package is not there.

    Raises:
        ValueError: it says how to install it.
    """
    if importlib.util.find_spec("mbi") is None:
        raise ValueError("engine='mbi' needs the package mbi: install the extra, pip install 'privopt[mbi]'.")


@dataclass(frozen=True, eq=False)
class GraphicalModel:
    """A Markov random field, as `mbi` fits it.

    Attributes:
        levels: cells of each column.
        field: of `mbi`, with the attributes "0", "1", ...
    """

    levels: tuple[int, ...]
    field: Any

    def marginal(self, columns: Sequence[int]) -> NDArray[np.float64]:
        """The weights of the cells of some columns, the first one running fastest."""
        names = [str(column) for column in columns]
        with double_precision():
            factor = self.field.project(tuple(names))
        cells = np.asarray(factor.values, np.float64)
        order = [list(factor.domain.attributes).index(name) for name in names]
        weights = np.maximum(np.ravel(np.transpose(cells, order), order="F"), 0.0)
        return weights / weights.sum()

    def answers(self, workload: Workload) -> NDArray[np.float64]:
        """The answers of a workload on these columns."""
        if workload.queries is not None:
            return workload.queries @ self.marginal(range(len(self.levels)))
        return np.concatenate([self.marginal(columns) for columns in workload.sets])

    def sample(self, rows: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """(rows, columns) codes in random order. The package draws from NumPy's global state, which is put back."""
        if rows == 0:
            return np.zeros((0, len(self.levels)), np.int64)
        state = np.random.get_state()  # noqa: NPY002
        np.random.seed(int(rng.integers(2**32)))  # noqa: NPY002
        try:
            with double_precision():
                drawn = self.field.synthetic_data(rows=rows)
        finally:
            np.random.set_state(state)  # noqa: NPY002
        columns = [np.asarray(drawn.data[str(column)], np.int64) for column in range(len(self.levels))]
        return rng.permutation(np.stack(columns, axis=1))


def fitted_by_pgm(
    measured: Sequence[ReleasedMarginal], total: float, levels: tuple[int, ...]
) -> GraphicalModel:
    """The Markov random field that fits released marginals best, by mirror descent.

    Args:
        measured: the releases, at least one. Those that would make the model larger than `LARGEST_MODEL` are left out;
            the first ones are kept.
        total: the weight of all units over n, see `released_total`.
        levels: cells of each column.
    Privacy:
        It is given releases and public numbers, nothing else: post-processing.
    Source:
        McKenna, Sheldon, Miklau 2019 (Private-PGM).
    """
    mbi = _package()
    domain = mbi.Domain([str(column) for column in range(len(levels))], list(levels))
    scale = _RECORDS / total
    fits = [
        mbi.LinearMeasurement(
            one.shares * scale, tuple(map(str, reversed(one.columns))), stddev=max(one.stddev * scale, 1e-6)
        )
        for one in _affordable(measured, domain)
    ]
    with double_precision():
        found = mbi.estimation.MirrorDescent().estimate(domain, fits, known_total=_RECORDS, iters=ITERATIONS)
    return GraphicalModel(levels, found)


def _affordable(measured: Sequence[ReleasedMarginal], domain: Any) -> list[ReleasedMarginal]:
    """The measurements, in order, whose junction tree stays small."""
    junction_tree = _package().junction_tree
    kept: list[ReleasedMarginal] = []
    cliques: list[tuple[str, ...]] = []
    for one in measured:
        names = tuple(map(str, one.columns))
        wider = [*cliques, names]
        covered = any(set(names) <= set(clique) for clique in cliques)
        if covered or junction_tree.hypothetical_model_size(domain, wider) <= LARGEST_MODEL:
            kept.append(one)
            cliques = wider
    return kept


def _package() -> Any:
    """The package `mbi`; on import it warns about settings of JAX that hold inside `double_precision` only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("mbi")
