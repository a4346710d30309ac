"""A synthesizer, and what follows: another model of its releases, and how far the model is from the data."""

import importlib
import importlib.util
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.ledger.events import Event
from privopt.ledger.events import Sequence as EventSequence
from privopt.mechanisms.additive import Gaussian
from privopt.planning.cell_weights import WorkloadTask
from privopt.planning.plan import Finding
from privopt.planning.task import Forecast
from privopt.precision import in_float64
from privopt.problems.workload import Workload
from privopt.public import Public
from privopt.queries.marginals import MarginalMeans, MeanDistance, QueryMeans
from privopt.result import Outcome
from privopt.solvers.fields import choice, number
from privopt.synthesis.base import ReleasedMarginal, Synthesizer, released_marginals, released_total

MARGINAL_METHODS = ("adaptive-marginals", "mwem", "gaussian-marginals")  # that release marginals
ERROR, ERROR_NOISE = "released_error", "released_error_noise"
LOUD_ERROR = 0.2  # noise on an error between 0 and 1 that is worth a notice


@dataclass(frozen=True, kw_only=True)
class Finishing(Synthesizer):
    """Another synthesizer for most of the budget, and the mean error of the model for the rest.

    Attributes:
        noise_multiplier: z of the whole run, see `Synthesizer`; where the inner one has a z of its own, it follows from
            that, and the error is paid for on top.
        inner: what asks for releases and models the table.
        engine: "own" for its model, "mbi" for Private-PGM fitted to the marginals that it released.
        share: of the budget, for the error; 0 releases none. It is one number that a unit hardly moves, so that
            little is enough.
    Guarantee:
        That of the inner synthesizer and one Gaussian release together; another model is post-processing.
    Source:
        Ours.
    """

    name: ClassVar[str] = "finishing"

    inner: Synthesizer
    engine: Literal["own", "mbi"] = choice("own")
    share: float = number(0.01, at_least=0, below=1)

    @property
    def title(self) -> str:
        """That of the inner synthesizer."""
        return self.inner.title + (", fitted by Private-PGM" if self.engine == "mbi" else "")

    def applicable(self, problem: Workload, public: Public) -> str | None:
        """Whatever the inner one can model; Private-PGM needs released marginals."""
        if self.engine == "mbi" and (problem.queries is not None or self.inner.name not in MARGINAL_METHODS):
            methods = ", ".join(MARGINAL_METHODS)
            return f"Private-PGM fits released marginals of a workload of column sets; use {methods}"
        return self.inner.applicable(problem, public)

    def filled(self, instance: Any) -> "Finishing":
        """With the inner one's defaults."""
        self.check_applicable(instance.problem, instance.public)
        return self.with_(inner=self.inner.filled(instance))

    def calibrated(self, task: WorkloadTask) -> Self:
        """See `Synthesizer`; a multiplier that the inner one was given stays."""
        if not self.is_set("noise_multiplier") and self.inner.is_set("noise_multiplier"):
            return self.with_(noise_multiplier=self.inner.noise_multiplier * (1.0 - self.share) ** 0.5)
        return super().calibrated(task)

    def event(self, public: Public) -> Event:
        """What the inner one releases, and the error."""
        modelling = self._modelling().event(public)
        return EventSequence((modelling, self._error_noise().event())) if self.share else modelling

    def releases(self) -> int:
        """One more for the error."""
        return self.inner.releases() + (self.share > 0)

    def forecast(self, instance: WorkloadTask) -> Forecast:
        """The inner one's, and whether the error's noise drowns it."""
        forecast = self._modelling().forecast(instance)
        if self.share == 0:
            return forecast
        public = instance.public
        moved = 0.5 * public.relation.factor / (public.n * public.typical_weight)
        noise = self._error_noise().noise_multiplier * moved
        if noise <= LOUD_ERROR:
            return forecast
        return forecast.noting(
            f"the error of the model will be measured with noise of about {noise:.2g}, which says little: a larger "
            "error_share, epsilon or n would help."
        )

    def fit_seconds(self, workload: Workload) -> float:
        return self.inner.fit_seconds(workload)

    def run(self, curator: Curator, workload: Workload) -> Outcome:
        """Model, fit the other model, then measure the error."""
        outcome = self._modelling().run(curator, workload)
        measured = released_marginals(curator.transcript, workload.levels)
        total = released_total(measured)
        if self.engine == "mbi" and measured:
            curator.announce("fitting Private-PGM")
            outcome = outcome._replace(params=fitted_by_pgm(measured, total, workload.levels))
        if self.share == 0:
            return outcome
        answers = total * outcome.params.answers(workload)
        asked: Any = MarginalMeans(workload=workload)
        if workload.queries is not None:
            asked, answers = QueryMeans(workload=workload), answers - 0.5 * total
        query = MeanDistance(mean=curator.hold_mean(asked), modelled=answers)
        released = float(curator.release(query, self._error_noise())) / total
        stddev = self._error_noise().noise_multiplier * float(query.sensitivity(curator.public)) / total
        what = (
            "absolute error of the queries"
            if workload.sets == ()
            else "total variation distance of the marginals"
        )
        found = {
            ERROR: Finding(max(released, 0.0), f"the mean {what} between the model and the data"),
            ERROR_NOISE: Finding(stddev, "the standard deviation of the noise on it"),
        }
        return outcome._replace(findings={**outcome.findings, **found})

    def _modelling(self) -> Synthesizer:
        """The inner synthesizer with its part of the budget."""
        if self.inner.is_set("noise_multiplier") or not self.is_set("noise_multiplier"):
            return self.inner
        return self.inner.with_(noise_multiplier=self.noise_multiplier / (1.0 - self.share) ** 0.5)

    def _error_noise(self) -> Gaussian:
        return self.gaussian(self.share)


# ---- Private-PGM (the package `mbi`) fitted to released marginals: another model from the same releases ----


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
        with in_float64():
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
            with in_float64():
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
    with in_float64():
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
