"""Adaptive marginals: measure every column, then in rounds the marginals that the model gets most wrong.

Source: McKenna, Mullins, Sheldon, Miklau 2022 (the rounds and the score), with a mixture of products for a model.
"""

import math
import string
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.curator.handles import HiddenMean
from privopt.ledger.events import Event, Repeated
from privopt.ledger.events import Sequence as EventSequence
from privopt.mechanisms.additive import Gaussian
from privopt.planning.averaging import PRODUCT_SECONDS
from privopt.planning.cell_weights import NORMAL_MEAN, WorkloadTask, cell_finding, cell_noise, loudness
from privopt.planning.plan import Finding
from privopt.planning.task import Forecast
from privopt.problems.workload import MOST_BYTES, Workload, cells_of
from privopt.public import Public
from privopt.queries.marginals import HeldMarginal, MarginalDistances, MarginalMeans
from privopt.result import Outcome, Status
from privopt.solvers.fields import derived, number
from privopt.synthesis.base import Synthesizer, as_leaves, systematic_counts, total_weight

# ---- A table as a mixture of tables with independent columns: for any number of columns --------------------
Matrix = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ProductMixture:
    """x(z) = sum_k weights_k prod_i shares_k,i(z_i): K products of independent columns.

    Attributes:
        levels: cells of each column; D is their sum.
        weights: (K,) at least 0, of sum 1.
        shares: (K, D) the columns of each product one after the other, each of sum 1.
    """

    levels: tuple[int, ...]
    weights: NDArray[np.float64]
    shares: Matrix

    @classmethod
    def independent(cls, columns: Sequence[NDArray[np.float64]]) -> "ProductMixture":
        """One product: columns that do not depend on one another."""
        return cls(tuple(len(column) for column in columns), np.ones(1), np.concatenate(columns)[None])

    @property
    def places(self) -> tuple[slice, ...]:
        """Where the cells of each column stand among the D."""
        return column_places(self.levels)

    def marginal(self, columns: Sequence[int]) -> NDArray[np.float64]:
        """The weights of the cells of some columns, the first one running fastest."""
        if not columns:
            return np.ones(1)
        places = self.places
        rows = row_products([self.shares[:, places[column]] for column in columns[1:]], self.weights)
        return np.ravel(rows.T @ self.shares[:, places[columns[0]]])

    def pairs(self) -> Matrix:
        """(D, D) the marginals of all pairs of columns at once; those of single columns on the diagonal blocks."""
        pairs = (self.shares * self.weights[:, None]).T @ self.shares
        single = self.weights @ self.shares
        for place in self.places:
            pairs[place, place] = np.diag(single[place])
        return pairs

    def answers(self, workload: Workload) -> NDArray[np.float64]:
        """The answers of a workload on these columns."""
        if workload.queries is not None:
            return workload.queries @ self.marginal(range(len(self.levels)))
        return np.concatenate([self.marginal(columns) for columns in workload.sets])

    def sample(self, rows: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """(rows, columns) codes in random order.

        A product's number of rows, and how often each code stands in its rows, are within 1 of what the model says; the
        codes of a product are then matched at random.
        """
        codes = np.empty((rows, len(self.levels)), np.int64)
        start, places = 0, self.places
        for product, count in enumerate(systematic_counts(self.weights, rows, rng).tolist()):
            if count == 0:
                continue
            for column, place in enumerate(places):
                often = systematic_counts(self.shares[product, place], count, rng)
                codes[start : start + count, column] = rng.permutation(
                    np.repeat(np.arange(len(often)), often)
                )
            start += count
        return rng.permutation(codes)


def column_places(levels: Sequence[int]) -> tuple[slice, ...]:
    """Where each column's cells stand when those of all columns stand one after the other."""
    ends = np.cumsum((0, *levels)).tolist()
    return tuple(slice(start, end) for start, end in pairwise(ends))


def row_products(factors: Sequence[Matrix], weights: NDArray[np.float64]) -> Matrix:
    """(K, cells) the weighted products of the factors' entries row by row, the first factor running fastest."""
    rows: Any = weights[:, None]
    for factor in reversed(factors):
        rows = (rows[:, :, None] * factor[:, None, :]).reshape(len(weights), -1)
    return rows


as_leaves(ProductMixture, "weights", "shares")


# ---- A mixture of products fitted to released marginals: weighted least squares by Adam --------------------
# Each fit begins where the last one ended.
MEMORY, SQUARE_MEMORY = 0.9, 0.99  # of Adam's averages of gradients and of their squares
FLOOR = 0.02  # weight of the uniform column in the logits that a fit starts from
SPREAD = 0.2  # standard deviation of the first logits, so that products can part


class Measured(NamedTuple):
    """A released marginal.

    Attributes:
        columns: which columns, the first running fastest.
        shares: its cells, as shares of the public n.
        precision: one over the variance of a cell, up to a factor common to all marginals.
    """

    columns: tuple[int, ...]
    shares: NDArray[np.float64]
    precision: float

    def joined(self, other: "Measured") -> "Measured":
        """Both measurements of the same columns as one."""
        total = self.precision + other.precision
        shares = (self.precision * self.shares + other.precision * other.shares) / total
        return Measured(self.columns, shares, total)


class Logits(NamedTuple):
    """The numbers that a fit moves: softmaxes of them are the model.

    Attributes:
        weights: (K,) of the products.
        shares: (K, D) of each product's columns.
    """

    weights: NDArray[np.float64]
    shares: Matrix

    def model(self, levels: tuple[int, ...]) -> ProductMixture:
        """The mixture."""
        return ProductMixture(levels, softmax(self.weights[None])[0], _softmaxes(self.shares, levels))


def first_logits(columns: Sequence[NDArray[np.float64]], components: int, rng: np.random.Generator) -> Logits:
    """Near the product of independent columns that are nearest to the released ones.

    Args:
        columns: released marginals of all columns one by one, as shares.
        components: K.
        rng: public randomness, which makes the products differ.
    """
    near = [np.log((1 - FLOOR) * nearest_shares(column) + FLOOR / len(column)) for column in columns]
    start = np.concatenate(near)
    return Logits(np.zeros(components), start + SPREAD * rng.standard_normal((components, len(start))))


def nearest_shares(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest point of the probability simplex.

    Source:
        Duchi, Shalev-Shwartz, Singer, Chandra 2008, figure 1.
    """
    ordered = np.sort(values)[::-1]
    excess = (np.cumsum(ordered) - 1) / np.arange(1, len(values) + 1)
    return np.maximum(values - excess[np.nonzero(ordered > excess)[0][-1]], 0.0)


@dataclass(frozen=True, kw_only=True)
class MixtureFit:
    """Minimise the mean over all measured cells of precision * (model - released)^2 over the logits.

    Few steps are enough, and many fit the noise: what was measured badly is left to what the model says.

    Attributes:
        steps: at least 0. The step length falls to 0 over the second half.
        rate: Adam's step length.
    Source:
        Kingma, Ba 2015, algorithm 1. The relaxed table of Aydore et al. 2021 is the case of equal weights.
    """

    steps: int
    rate: float = 0.05

    def fit(self, logits: Logits, levels: tuple[int, ...], measured: Sequence[Measured]) -> Logits:
        """The logits after the steps."""
        point = Logits(logits.weights.copy(), logits.shares.copy())
        if not measured:
            return point
        scale = math.fsum(one.precision * len(one.shares) for one in measured)
        gradients = [np.zeros_like(part) for part in point]
        squares = [np.zeros_like(part) for part in point]
        for step in range(self.steps):
            slopes = _slopes(point, levels, measured, scale)
            length = self.rate * min(1.0, 2.0 * (1.0 - step / self.steps))
            for part, slope, gradient, square in zip(point, slopes, gradients, squares, strict=True):
                gradient *= MEMORY
                gradient += (1 - MEMORY) * slope
                square *= SQUARE_MEMORY
                square += (1 - SQUARE_MEMORY) * slope * slope
                root = np.sqrt(square / (1 - SQUARE_MEMORY ** (step + 1))) + 1e-12
                part -= length * (gradient / (1 - MEMORY ** (step + 1))) / root
        return point


def _slopes(
    point: Logits, levels: tuple[int, ...], measured: Sequence[Measured], scale: float
) -> tuple[NDArray[np.float64], Matrix]:
    """The gradient of half of the weighted mean of squares in the logits."""
    model, places = point.model(levels), column_places(levels)
    weights, shares = model.weights, model.shares
    of_weights, of_shares = np.zeros_like(weights), np.zeros_like(shares)
    for one in measured:
        first = shares[:, places[one.columns[0]]]
        factors = [shares[:, places[column]] for column in one.columns[1:]]
        rows = row_products(factors, np.ones(len(weights)))
        weighted = rows * weights[:, None]
        residual = (weighted.T @ first - one.shares.reshape(-1, first.shape[1])) * (one.precision / scale)
        of_shares[:, places[one.columns[0]]] += weighted @ residual
        pulled = first @ residual.T
        of_weights += np.einsum("kc,kc->k", pulled, rows)
        if factors:
            pulled *= weights[:, None]
            for place, factor_slope in zip(one.columns[1:], _unproducts(factors, pulled), strict=True):
                of_shares[:, places[place]] += factor_slope
    of_shares *= shares
    for place in places:
        of_shares[:, place] -= shares[:, place] * of_shares[:, place].sum(axis=1, keepdims=True)
    return weights * (of_weights - float(weights @ of_weights)), of_shares


def _unproducts(factors: Sequence[Matrix], pulled: Matrix) -> list[Matrix]:
    """The gradient in each factor of `row_products`, from that in the products."""
    if len(factors) == 1:
        return [pulled]
    if len(factors) == 2:
        fast, slow = factors
        cells = pulled.reshape(len(pulled), slow.shape[1], fast.shape[1])
        return [np.matmul(slow[:, None, :], cells)[:, 0], np.matmul(cells, fast[:, :, None])[:, :, 0]]
    letters = string.ascii_lowercase[: len(factors)]  # the products' row axis is "z"
    cells = pulled.reshape(len(pulled), *(factor.shape[1] for factor in reversed(factors)))
    slopes: list[Matrix] = []
    for kept in range(len(factors)):
        others = [place for place in range(len(factors)) if place != kept]
        names = ",".join(["z" + letters[::-1], *("z" + letters[place] for place in others)])
        slopes.append(
            np.einsum(
                f"{names}->z{letters[kept]}", cells, *(factors[place] for place in others), optimize=True
            )
        )
    return slopes


def softmax(rows: Matrix) -> Matrix:
    """The softmax of each row."""
    masses = np.exp(rows - rows.max(axis=1, keepdims=True))
    return masses / masses.sum(axis=1, keepdims=True)


def _softmaxes(rows: Matrix, levels: tuple[int, ...]) -> Matrix:
    """The softmax of each column's part of each row."""
    shares = np.empty_like(rows)
    for place in column_places(levels):
        shares[:, place] = softmax(rows[:, place])
    return shares


# ---- Defaults and forecast of adaptive marginals, from public numbers --------------------------------------
# With kappa = n / s the loudness of the data (`planning.cell_weights.loudness`), m columns of D cells in all: the start
# gets 1.8 nu^(1/3) of the budget, nu = sqrt(2 / pi) D / (2 sqrt(m) kappa) the mean total variation that noise of the
# whole budget causes in a column; and m sqrt(kappa) / 20 marginals are chosen, in up to six rounds. All three were
# chosen on a half of adult_discrete and on compas, german, randhie and fars, at epsilon from 0.1 to 3, where doubling
# or halving one of them moves the mean error by a few hundredths of itself: `docs/synthetic-data.md`. Utility only.
MOST_ROUNDS = 6
START_SLOPE, LARGEST_START, SMALLEST_START = 1.8, 0.8, 0.02
CHOICES_SLOPE = 1.0 / 20.0
SIZE_POWER = 2.0 / 3.0  # of a column's cells, to which its part of the start is proportional
SELECTION = 0.07  # of what the start leaves
HARMLESS, MOST_SMALL = 0.03, 100.0  # total variation of a marginal by noise; choices for its sake
LARGEST_MARGINAL = 2**22  # cells of a candidate


def candidates(workload: Workload) -> tuple[tuple[int, ...], ...]:
    """The marginals that may be chosen: those asked for of at least two columns, and the pairs within them."""
    found: dict[tuple[int, ...], None] = {}
    for columns in workload.sets:
        ordered = tuple(sorted(columns))
        for place, first in enumerate(ordered):
            found.update(((first, second), None) for second in ordered[place + 1 :])
        if len(ordered) > 2 and cells_of(workload.levels, ordered) <= LARGEST_MARGINAL:
            found[ordered] = None
    return tuple(sorted(found, key=lambda one: (len(one), one)))


def asked(workload: Workload) -> Workload:
    """What is counted and held: every column alone, then the candidates."""
    singles = tuple((column,) for column in range(len(workload.levels)))
    return Workload(workload.levels, sets=singles + candidates(workload))


def too_large(workload: Workload) -> str | None:
    """Why what is counted would not fit into memory, or None."""
    cells = sum(workload.levels) + sum(cells_of(workload.levels, columns) for columns in candidates(workload))
    if 8 * cells <= MOST_BYTES:
        return None
    return (
        f"it would hold {cells:.2g} cells of marginals, {8 * cells / 2**30:.1f} GiB; ask for fewer columns at once, "
        "fewer column sets or coarser bins"
    )


def column_noise(task: WorkloadTask) -> float:
    """nu: mean total variation that noise causes in a column where the columns get the whole budget."""
    levels = task.problem.levels
    return NORMAL_MEAN * sum(levels) / (2.0 * math.sqrt(len(levels)) * loudness(task))


def total_choices(task: WorkloadTask) -> int:
    """How many marginals are chosen in all: m sqrt(kappa) / 20, and more where marginals are small.

    Many small marginals can be measured before the noise of each has a total variation of 0.03. At least 1 where there
    are candidates, at most twice as many as there are.
    """
    sizes = [cells_of(task.problem.levels, columns) for columns in candidates(task.problem)]
    if not sizes:
        return 0
    loud, typical = loudness(task), sum(sizes) / len(sizes)
    small = (2.0 * HARMLESS * loud / (NORMAL_MEAN * typical)) ** 2
    total = CHOICES_SLOPE * len(task.problem.levels) * math.sqrt(loud) + min(small, MOST_SMALL)
    return max(1, min(round(total), 2 * len(sizes)))


@dataclass(frozen=True, kw_only=True)
class AdaptiveMarginals(Synthesizer):
    """Choose marginals by how wrong the model is on them, measure them with Gaussian noise, fit a mixture of products.

    Attributes:
        noise_multiplier: z of the whole run, see `Synthesizer`.
        rounds: how often the model is fitted anew, at least 0; with 0 columns are independent.
        choices: marginals chosen a round, without replacement within one.
        start_share: of the budget, for the columns one by one.
        selection_share: of the rest, for choosing; what remains measures.
        components: K, the products of the mixture.
        steps: Adam's, a fit.
        penalty: what is taken off the score of a marginal of d cells, over sqrt(2 / pi) sigma d: the noise that
            measuring it would add. A model that shares cells averages much of it away, so less than 1 is better.
        columns: of the table.
        seed: of the public randomness of the fit.
    Guarantee:
        The columns are Gaussian releases, each choice is bounded range, each measurement Gaussian: (epsilon, delta)-DP
        by the best accountant for their composition, under the curator's relation. Everything else is post-processing.
    Differs from the paper:
        a mixture of products in place of Private-PGM; the number of rounds is fixed beforehand; several marginals are
        chosen a round; a column's share of the start grows with its cells.
    Source:
        McKenna, Mullins, Sheldon, Miklau 2022, algorithms 1 and 2.
    """

    name: ClassVar[str] = "adaptive-marginals"

    rounds: int = derived(at_least=0)
    choices: int = derived(at_least=1)
    start_share: float = derived(above=0, at_most=1)
    selection_share: float = number(SELECTION, above=0, below=1)
    components: int = number(200, at_least=1)
    steps: int = number(60, at_least=0)
    penalty: float = number(0.3, at_least=0)
    columns: int = derived(at_least=1)
    seed: int = number(0, at_least=0)

    def default_columns(self, task: WorkloadTask) -> int:
        """As many as the table has."""
        return len(task.problem.levels)

    def default_rounds(self, task: WorkloadTask) -> int:
        """Six, or fewer where fewer marginals are chosen."""
        return min(MOST_ROUNDS, total_choices(task))

    def default_choices(self, task: WorkloadTask) -> int:
        """What is chosen in all over the rounds, at most all candidates a round."""
        total = total_choices(task)
        return max(1, min(round(total / self.rounds), len(candidates(task.problem)))) if self.rounds else 1

    def default_start_share(self, task: WorkloadTask) -> float:
        """More for the columns alone the noisier they would be; all where nothing is chosen."""
        if self.rounds == 0:
            return 1.0
        return min(LARGEST_START, max(SMALLEST_START, START_SLOPE * column_noise(task) ** (1.0 / 3.0)))

    def applicable(self, problem: Workload, public: Public) -> str | None:
        """Marginals of a coded table."""
        if problem.queries is not None:
            return "it models marginals, and the workload has queries; use query-game-ml"
        there = len(candidates(problem))
        if self.rounds and self.choices and self.choices > there:
            return f"it is to choose {self.choices} marginals a round, and the workload has {there} of several columns"
        return super().applicable(problem, public) or too_large(problem)

    def event(self, public: Public) -> Event:
        """The columns, then choices and measurements."""
        starts = [self.gaussian(share).event() for share in self._start_shares(public.levels)]
        if self.chosen == 0:
            return EventSequence(tuple(starts))
        choosing, measuring = self._choice_shares()
        each = EventSequence((self.choice(choosing).event(), self.gaussian(measuring).event()))
        return EventSequence((*starts, Repeated(each, self.chosen)))

    @property
    def chosen(self) -> int:
        """How many marginals are chosen in all."""
        return self.rounds * self.choices if self.start_share < 1 else 0

    def releases(self) -> int:
        """One a column, two a choice."""
        return self.columns + 2 * self.chosen

    def forecast(self, instance: WorkloadTask) -> Forecast:
        """The noise of what is measured, and notices where it drowns everything."""
        levels = instance.problem.levels
        starts = self._start_shares(levels)
        noise = [cell_noise(self.noise_multiplier, share, instance) for share in starts]
        variation = [NORMAL_MEAN * level * one / 2 for level, one in zip(levels, noise, strict=True)]
        typical = sum(variation) / len(variation)
        found = {
            "column_noise": Finding(
                typical,
                "the mean total variation that the noise alone causes in a column before the model is fitted",
            )
        }
        if self.rounds:
            _, measuring = self._choice_shares()
            chosen = cell_noise(self.noise_multiplier, measuring, instance)
            found["cell_noise"] = cell_finding(chosen, "a chosen marginal")
        notices = ()
        if typical > 0.5:
            notices = (
                f"the noise on the columns alone has a total variation of about {typical:.2g}: the sample will say "
                "little. More units, a larger epsilon, or columns with fewer cells would help.",
            )
        return Forecast(
            meaning="there is no formula for the error of a model; see the indicators",
            indicators=found,
            notices=notices,
        )

    def fit_seconds(self, workload: Workload) -> float:
        """Three products for each measured cell and step, an exponential for each logit."""
        sizes = [cells_of(workload.levels, columns) for columns in candidates(workload)]
        typical = sum(sizes) / max(1, len(sizes))
        chosen = self.choices * self.rounds * (self.rounds + 1) / 2
        products = 3.0 * self.components * self.steps * chosen * typical * 2.0 * PRODUCT_SECONDS
        logits = (self.rounds + 1) * self.steps * self.components * sum(workload.levels) * 4e-8
        return products + logits

    def run(self, curator: Curator, workload: Workload) -> Outcome:
        """Columns, then rounds of choices, measurements and fits."""
        held = asked(workload)
        mean = curator.hold_mean(MarginalMeans(workload=held))
        starts = [self.gaussian(share) for share in self._start_shares(workload.levels)]
        columns = [curator.release(HeldMarginal(mean=mean, place=i), noise) for i, noise in enumerate(starts)]
        released = [np.asarray(column, np.float64) for column in columns]
        total = total_weight(released, [_noise(mean, i, starts[i]) for i in range(len(starts))])
        measured = {
            i: Measured((i,), column / total, _precision(starts[i])) for i, column in enumerate(released)
        }
        if self.chosen == 0:
            alone = [nearest_shares(one.shares) for one in measured.values()]
            return Outcome(ProductMixture.independent(alone), Status.FINISHED)
        rng = np.random.default_rng(self.seed)
        logits = first_logits([one.shares for one in measured.values()], self.components, rng)
        logits = self._fit(logits, held, measured)
        for _ in range(self.rounds):
            curator.announce("choosing marginals")
            for place in self._choose(curator, mean, held, logits, total):
                one = self._measure(curator, mean, held, place, total)
                measured[place] = measured[place].joined(one) if place in measured else one
            logits = self._fit(logits, held, measured)
        return Outcome(logits.model(workload.levels), Status.FINISHED)

    def _choose(
        self, curator: Curator, mean: HiddenMean, held: Workload, logits: Logits, total: float
    ) -> list[int]:
        """The places of this round's marginals among those held."""
        choosing, measuring = self._choice_shares()
        noise = _noise(mean, len(held.levels), self.gaussian(measuring)) * curator.public.n
        modelled = total * logits.model(held.levels).answers(held)
        left = list(range(len(held.levels), len(held.sets)))
        chosen: list[int] = []
        for _ in range(self.choices):
            penalties = np.array([self.penalty * NORMAL_MEAN * noise * held.cells[place] for place in left])
            scores = MarginalDistances(
                mean=mean, modelled=modelled, penalties=penalties, candidates=tuple(left)
            )
            chosen.append(left.pop(int(curator.release(scores, self.choice(choosing)))))
        return chosen

    def _measure(
        self, curator: Curator, mean: HiddenMean, held: Workload, place: int, total: float
    ) -> Measured:
        _, measuring = self._choice_shares()
        noise = self.gaussian(measuring)
        cells = np.asarray(curator.release(HeldMarginal(mean=mean, place=place), noise), np.float64)
        return Measured(held.sets[place], cells / total, _precision(noise))

    def _fit(self, logits: Logits, held: Workload, measured: dict[int, Measured]) -> Logits:
        return MixtureFit(steps=self.steps).fit(logits, held.levels, list(measured.values()))

    def _start_shares(self, levels: Sequence[int]) -> tuple[float, ...]:
        """Each column's part of the budget: a column of d cells gets d^(2/3), which makes the summed errors least."""
        sizes = [level**SIZE_POWER for level in levels]
        return tuple(self.start_share * size / math.fsum(sizes) for size in sizes)

    def _choice_shares(self) -> tuple[float, float]:
        """The parts of the budget for one choice, and for measuring what was chosen."""
        each = (1.0 - self.start_share) / max(1, self.rounds * self.choices)
        return each * self.selection_share, each * (1.0 - self.selection_share)


def _precision(noise: Gaussian) -> float:
    """One over the variance, in squares of the sensitivity that all marginals have; 1 without noise."""
    return 1.0 / noise.noise_multiplier**2 if noise.noise_multiplier > 0 else 1.0


def _noise(mean: HiddenMean, place: int, noise: Gaussian) -> float:
    """The standard deviation of a cell, as a share of n."""
    query: Any = HeldMarginal(mean=mean, place=place)
    return noise.noise_multiplier * float(query.sensitivity(mean.public))
