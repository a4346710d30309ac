"""The query game: one player draws queries that the other's table answers badly; only the draws see the data.

Source: Gonzalez, Guzman, Paquette 2024, Theorem 1.1; Gaboardi et al. 2014 (dual query).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.ledger.events import Event, NoEvent
from privopt.mechanisms.vertex_stream import VertexSampler, VertexTable
from privopt.planning.cell_weights import WorkloadTask, fit_seconds, loudness
from privopt.planning.plan import Bound, Finding
from privopt.planning.task import Forecast
from privopt.problems.workload import Workload, cells_of, codes_of, strides_of
from privopt.public import Public
from privopt.queries.marginals import MarginalMeans, QueryMeans, SignedErrors
from privopt.result import Outcome, Status
from privopt.solvers.fields import choice, derived, number
from privopt.solvers.needs import Need
from privopt.synthesis.base import FewCells, Histogram, Synthesizer, as_leaves, systematic_counts
from privopt.synthesis.mirror_fit import AnswerMap, Draws, Likelihood, MirrorFit

# ---- Prices of the draws: a unit moves the signed errors by a range of factor / n --------------------------
# K draws at an inverse temperature beta cost K (beta factor / n)^2 / 8 of zCDP.
PRESET_ROUNDS, PRESET_DRAWS = 200, 4
LIKELIHOOD_ROUNDS, FEWEST_DRAWS, MOST_DRAWS, DRAWS_SLOPE = 20, 40, 100, 1.0 / 30.0
NO_DRAW = Forecast(meaning="no draw: the uniform table, at no cost")


def check_noise(program: "QueryGame | QueryGameML", task: WorkloadTask) -> None:
    """Refuse a game without privacy: its draws have a temperature, and so always a price.

    Raises:
        ValueError: epsilon is infinite, or the noise multiplier 0.
    """
    if not task.is_private or program.noise_multiplier == 0:
        raise ValueError(
            f"{program.name} needs a finite epsilon and a noise multiplier above 0, since it draws queries at random: "
            "without privacy use another method, such as gaussian-marginals."
        )


def item_range(public: Public) -> float:
    """By which range one unit moves the signed errors."""
    return public.relation.factor / public.n


def _log_cells(workload: Workload) -> float:
    return math.fsum(math.log(level) for level in workload.levels)


# ---- The record that a few signed queries like best: what the data player of a dual query answers with -----
# (workload, drawn queries, their signs, public randomness for ties) -> the codes of a record of a large signed sum.
Oracle = Callable[[Workload, NDArray[np.int64], NDArray[np.int64], np.random.Generator], Sequence[int]]

_SWEEPS = 20


def best_record(
    workload: Workload, queries: NDArray[np.int64], signs: NDArray[np.int64], rng: np.random.Generator
) -> tuple[int, ...]:
    """A record of a large sum of signed queries.

    Queries on the joint table are tried on every cell. Cells of marginals are conjunctions: from each drawn cell in
    turn, one column after the other takes its best code until nothing gains; the best end is kept. Exact where the
    drawn cells are about different columns; otherwise a local optimum, which costs accuracy, never privacy.

    Source:
        Gaboardi, Gallego Arias, Hsu, Roth, Wu 2014 (dual query), section 4, with a solver for integer programs.
    """
    if workload.queries is not None:
        cell = int(np.argmax(signs @ workload.queries[queries]))
        return tuple(int(code) for code in codes_of(workload.levels, range(len(workload.levels)))[cell])
    terms = [
        (*_conjunction(workload, int(query)), int(sign)) for query, sign in zip(queries, signs, strict=True)
    ]
    best: list[int] = []
    reached = -np.inf
    for columns, codes, _ in terms:
        record: list[int] = rng.integers(0, workload.levels).tolist()
        for column, code in zip(columns, codes, strict=True):
            record[column] = code
        record = _climb(workload.levels, terms, record)
        value = _worth(terms, record)
        if value > reached:
            best, reached = record, value
    return tuple(best)


Term = tuple[tuple[int, ...], tuple[int, ...], int]


def _conjunction(workload: Workload, cell: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The columns of a cell's marginal, and the codes that the cell stands for."""
    starts = [place.start for place in workload.slices]
    place = int(np.searchsorted(starts, cell, side="right")) - 1
    columns, rest, codes = workload.sets[place], cell - starts[place], []
    for column in columns:
        codes.append(rest % workload.levels[column])
        rest //= workload.levels[column]
    return columns, tuple(codes)


def _worth(terms: Sequence[Term], record: Sequence[int]) -> int:
    return sum(
        sign
        for columns, codes, sign in terms
        if all(record[column] == code for column, code in zip(columns, codes, strict=True))
    )


def _climb(levels: tuple[int, ...], terms: Sequence[Term], record: list[int]) -> list[int]:
    """Change one column at a time to its best code, ties to the code that stands."""
    used = sorted({column for columns, _, _ in terms for column in columns})
    for _ in range(_SWEEPS):
        before = list(record)
        for column in used:
            named = {codes[columns.index(column)] for columns, codes, _ in terms if column in columns}
            other = next((code for code in range(levels[column]) if code not in named), None)
            choices = [record[column], *sorted(named), *([] if other is None else [other])]
            worth = [_worth(terms, [*record[:column], code, *record[column + 1 :]]) for code in choices]
            record[column] = choices[int(np.argmax(worth))]
        if record == before:
            break
    return record


# ---- A table as weighted records: what the best responses of a game add up to, for any number of columns ---
@dataclass(frozen=True, eq=False)
class Records:
    """Records and what each weighs.

    Attributes:
        levels: cells of each column.
        codes: (records, columns).
        weights: (records,) at least 0, of sum 1.
    """

    levels: tuple[int, ...]
    codes: NDArray[np.int64]
    weights: NDArray[np.float64]

    def marginal(self, columns: Sequence[int]) -> NDArray[np.float64]:
        """The weights of the cells of some columns, the first one running fastest."""
        cells = self._cells(columns)
        size = cells_of(self.levels, columns)
        return np.bincount(cells, weights=self.weights, minlength=size).astype(np.float64)

    def answers(self, workload: Workload) -> NDArray[np.float64]:
        """The answers of a workload on these columns."""
        if workload.queries is not None:
            return workload.queries[:, self._cells(range(len(self.levels)))] @ self.weights
        return np.concatenate([self.marginal(columns) for columns in workload.sets])

    def sample(self, rows: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """(rows, columns) codes in random order; a record's count is within 1 of `rows` times its weight."""
        counts = systematic_counts(self.weights, rows, rng)
        return rng.permutation(np.repeat(self.codes, counts, axis=0))

    def _cells(self, columns: Sequence[int]) -> NDArray[np.int64]:
        strides = np.array(strides_of(self.levels, columns), np.int64)
        return self.codes[:, list(columns)] @ strides


as_leaves(Records, "codes", "weights")


@dataclass(frozen=True, kw_only=True)
class QueryGame(Synthesizer):
    """A zero-sum game between signed queries, drawn from softmax(beta_t * average error), and a public table.

    Attributes:
        noise_multiplier: z of the whole run, see `Synthesizer`.
        variant: "preset" draws at beta_t = s sqrt t from errors averaged with linear weights, the current table's
            included, and returns the linearly weighted average table; "literal" has constant steps, equal weights and
            the bound of the paper.
        data_player: "weights" moves the weights of all cells; "oracle" answers the draws with the best record, for
            tables of any size (dual query).
        draws: K a round, at least 0.
        rounds: T, at least 0.
        oracle: of the data player "oracle", see `Oracle`; None for `best_record`.
        seed: of the oracle's public randomness.
    Guarantee:
        K T draws of bounded range: (epsilon, delta)-DP, delta may be 0. The table is a function of the draws.
        Literally, E max error <= sqrt(log N / (2 T)) + log(2 m) / (tau T) + tau / 2 over m queries and N cells.
    Differs from the paper:
        all units every round; prices by bounded range; queries are centred; the preset's weights and temperatures.
    Source:
        Gonzalez, Guzman, Paquette 2024, Theorem 1.1 and Algorithm 1.
    """

    name: ClassVar[str] = "query-game"

    variant: Literal["preset", "literal"] = choice("preset")
    data_player: Literal["weights", "oracle"] = choice("weights")
    draws: int = derived(at_least=0)
    rounds: int = derived(at_least=0)
    oracle: Oracle | None = None
    seed: int = number(0, at_least=0)

    def default_draws(self, task: WorkloadTask) -> int:
        """4; literally 1."""
        del task
        return PRESET_DRAWS if self.variant == "preset" else 1

    def default_rounds(self, task: WorkloadTask) -> int:
        """200; literally T = n sqrt(6 rho log N / (K c)) / log(2 m), which balances its bound.

        Source:
            Gonzalez, Guzman, Paquette 2024, Theorem 1.1, with bounded-range prices.
        """
        if self.variant == "preset":
            return PRESET_ROUNDS
        log_cells = _log_cells(task.problem)
        loud = loudness(task) * (1.0 if task.public.relation.factor == 2 else math.sqrt(0.5))
        steps = loud * math.sqrt(3.0 * log_cells / self.draws) / math.log(2 * task.problem.size)
        return min(max(2, round(steps)), 5000)

    def applicable(self, problem: Workload, public: Public) -> str | None:
        """A coded table; with few enough cells where all of them are weighed."""
        refused = super().applicable(problem, public)
        weighed = self.data_player == "weights"
        return refused or (FewCells().refusal(self, problem, public) if weighed else None)

    def filled(self, instance: WorkloadTask) -> Self:
        """See `Program`; draws need a temperature, so privacy cannot be switched off."""
        check_noise(self, instance)
        return super().filled(instance)

    def sampler(self, public: Public) -> VertexSampler:
        """The stream that draws the queries."""
        rounds = range(1, self.rounds + 1)
        if self._included:
            scale = self._preset_scale(public)
            temperatures = [0.0, *(scale * math.sqrt(t) for t in rounds)]
            weights, draws = [float(t) for t in rounds], [0, *(self.draws for _ in rounds)]
        else:
            step = self.literal_step(public)
            weights = [1.0 if self.variant == "literal" else float(t) for t in rounds[:-1]]
            scale = step if self.variant == "literal" else self._preset_scale(public)
            temperatures = [
                scale * (t if self.variant == "literal" else math.sqrt(t)) for t in range(self.rounds)
            ]
            draws = [self.draws for _ in rounds]
        return VertexSampler.weighted_average(
            step_weights=weights,
            inverse_temperatures=temperatures,
            draws=draws,
            half_range=2.0,
            sensitivities=item_range(public),
        )

    def _preset_scale(self, public: Public) -> float:
        """s in beta_t = s sqrt t: K sum over t = 1, ..., T of (s factor / n)^2 t / 8 is 1 / (2 z^2)."""
        steps = self.rounds * (self.rounds + 1) / 2
        return 2.0 / (self.noise_multiplier * item_range(public) * math.sqrt(self.draws * steps))

    def literal_step(self, public: Public) -> float:
        """tau in beta_t = tau t: K sum over t < T of (tau t factor / n)^2 / 8 is 1 / (2 z^2)."""
        squares = (self.rounds - 1) * self.rounds * (2 * self.rounds - 1) / 6
        if squares == 0:
            return 0.0
        return 2.0 / (self.noise_multiplier * item_range(public) * math.sqrt(self.draws * squares))

    @property
    def _included(self) -> bool:
        """Whether the queries of a round are drawn knowing its table: not if the table answers them."""
        return self.variant == "preset" and self.data_player == "weights"

    def event(self, public: Public) -> Event:
        """The stream."""
        return self.sampler(public).event() if self.rounds * self.draws else NoEvent()

    def releases(self) -> int:
        """The opening of the stream, and the draws of each step."""
        if self.rounds * self.draws == 0:
            return 0
        return 1 + self.rounds + (1 if self._included else 0)

    def forecast(self, instance: WorkloadTask) -> Forecast:
        """The bound of the literal variant; of the others only what is known of their kind."""
        if not (self.rounds and self.draws):
            return NO_DRAW
        return Forecast(
            meaning="there is no useful formula for the error of this game; marginals are modelled better by others",
            bound=self.bound(instance),
        )

    def bound(self, task: WorkloadTask) -> Bound | None:
        """The theorem behind the literal variant, on the expected largest error over the queries.

        sqrt(log N / (2 T)) + log(2 m) / (tau T) + tau / 2.
        """
        if self.variant == "preset" or self.data_player == "oracle" or self.rounds < 2:
            return None
        step = self.literal_step(task.public)
        players = math.sqrt(_log_cells(task.problem) / (2.0 * self.rounds))
        value = players + math.log(2 * task.problem.size) / (step * self.rounds) + step / 2.0
        return Bound(value, 1.0, "the expected largest error over all queries, for any data")

    def fit_seconds(self, workload: Workload) -> float:
        """An iteration a round."""
        return fit_seconds(self.rounds, workload) if self.data_player == "weights" else 2e-3 * self.rounds

    def run(self, curator: Curator, workload: Workload) -> Outcome:
        """Draw queries, and move the table towards them."""
        if self.rounds * self.draws == 0:
            return Outcome(_nothing(workload, self.data_player), Status.FINISHED)
        unstructured = workload.queries is not None
        mean = curator.hold_mean(
            QueryMeans(workload=workload) if unstructured else MarginalMeans(workload=workload)
        )
        stream = curator.stream("drawn queries", self.sampler(curator.public), (2 * workload.size,))
        player = _Weights(self, workload) if self.data_player == "weights" else _Best(self, workload)
        curator.announce("drawing queries")

        def answered() -> None:
            answers = player.answers()
            modelled = answers - 0.5 if unstructured else answers
            stream.ask("add", SignedErrors(mean=mean, modelled=modelled))

        if self._included:
            stream.ask("draw")
        for t in range(self.rounds):
            if self._included:
                answered()
            drawn = np.asarray(stream.ask("draw"), np.int64)
            # Smaller scores are likelier, so the first half, held - modelled, is drawn where the model says too much.
            queries, signs = drawn % workload.size, np.where(drawn < workload.size, -1, 1)
            player.move(t + 1, queries, signs)
            if not self._included and t + 1 < self.rounds:
                answered()
        return Outcome(player.model(), Status.FINISHED)


class _Weights:
    """Dual averaging on the weights of all cells, as the data player."""

    def __init__(self, game: QueryGame, workload: Workload) -> None:
        self._game, self._map = game, AnswerMap(workload)
        self._weights = Histogram.uniform(workload.levels).weights
        self._direction, self._mean = np.zeros(workload.universe), np.zeros(workload.universe)
        self._log_cells = math.log(workload.universe)
        self._weighed = 0.0

    def answers(self) -> NDArray[np.float64]:
        """What the current table answers."""
        return self._map.answers(self._weights)

    def move(self, t: int, queries: NDArray[np.int64], signs: NDArray[np.int64]) -> None:
        """Average the table that was played, then play the next."""
        literal = self._game.variant == "literal"
        weight = 1.0 if literal else float(t)
        self._weighed += weight
        self._mean += (self._weights - self._mean) * (weight / self._weighed)
        counts = np.bincount(queries, weights=signs, minlength=self._map.workload.size) / len(queries)
        self._direction += (self._map.adjoint(counts) - self._direction) * (weight / self._weighed)
        if literal:
            steepness = t * math.sqrt(8.0 * self._log_cells / self._game.rounds)
        else:
            steepness = 2.0 * math.sqrt(2.0 * self._log_cells * t)
        masses = np.exp(steepness * (self._direction - np.max(self._direction)))
        self._weights = masses / masses.sum()

    def model(self) -> Histogram:
        """The average table."""
        return Histogram(self._map.workload.levels, self._mean / self._mean.sum())


class _Best:
    """Best responses to the draws, as the data player."""

    def __init__(self, game: QueryGame, workload: Workload) -> None:
        self._game, self._workload = game, workload
        self._oracle = best_record if game.oracle is None else game.oracle
        self._records: list[tuple[int, ...]] = []
        self._rng = np.random.default_rng(game.seed)

    def answers(self) -> NDArray[np.float64]:
        """What the last record answers."""
        codes = np.array(self._records[-1:], np.int64)
        return Records(self._workload.levels, codes, np.ones(1)).answers(self._workload)

    def move(self, t: int, queries: NDArray[np.int64], signs: NDArray[np.int64]) -> None:
        """Answer the draws of round t."""
        del t
        answer: Any = self._oracle(self._workload, queries, signs, self._rng)
        self._records.append(tuple(int(code) for code in answer))

    def model(self) -> Records:
        """All answers, as the variant weighs them."""
        literal = self._game.variant == "literal"
        weights = np.ones(len(self._records)) if literal else 1.0 + np.arange(len(self._records))
        return Records(self._workload.levels, np.array(self._records, np.int64), weights / weights.sum())


def _nothing(workload: Workload, data_player: str) -> Any:
    """A table at no cost."""
    if data_player == "weights":
        return Histogram.uniform(workload.levels)
    return Records(workload.levels, np.zeros((1, len(workload.levels)), np.int64), np.ones(1))


# ------------------------------------------------------------------------------------------------------------
# The query game with a likelihood refit: drawn queries are measurements, and the table makes them likely.


FINAL_ITERATIONS = 200  # of the last fit


@dataclass(frozen=True, kw_only=True)
class QueryGameML(Synthesizer):
    """Draw queries by the current table's errors, then refit the table by the likelihood of all draws.

    A draw's probability depends on the data through the answers alone, and its logarithm is concave in them. So T
    rounds draw K signed queries from softmax(beta * error of the table), and the next table is the maximiser of the
    likelihood of all draws less `entropy` times sum x log x.

    Attributes:
        noise_multiplier: z of the whole run, see `Synthesizer`.
        rounds: T, at least 0; 0 returns the uniform table and spends nothing.
        draws: K a round.
        entropy: lam of the refit, above 0.
        iterations: mirror steps of a refit, from where the last one ended.
    Guarantee:
        K T draws of bounded range: (epsilon, delta)-DP, delta may be 0. The table is a function of the draws.
    Source:
        Ours; the draws are those of Gonzalez, Guzman, Paquette 2024, Theorem 1.1, without their history.
    """

    name: ClassVar[str] = "query-game-ml"
    needs: ClassVar[tuple[Need, ...]] = (FewCells(),)

    rounds: int = number(LIKELIHOOD_ROUNDS, at_least=0)
    draws: int = derived(at_least=1)
    entropy: float = number(0.3, above=0)
    iterations: int = number(30, at_least=0)

    def default_draws(self, task: WorkloadTask) -> int:
        """kappa / 30, between 40 and 100: more of them only where each can be nearly uniform."""
        return min(MOST_DRAWS, max(FEWEST_DRAWS, round(DRAWS_SLOPE * loudness(task))))

    def filled(self, instance: WorkloadTask) -> Self:
        """See `Program`; draws need a temperature, so privacy cannot be switched off."""
        check_noise(self, instance)
        return super().filled(instance)

    def sampler(self, public: Public) -> VertexTable:
        """The stream: the draws of round t see item t alone."""
        weight = self._temperature(public) * item_range(public)
        return VertexTable(
            weights=tuple(((t, weight),) for t in range(self.rounds)),
            draws=(self.draws,) * self.rounds,
            participation=VertexTable.every_item(self.rounds),
            largest_item=2.0 / item_range(public),
        )

    def event(self, public: Public) -> Event:
        """The stream."""
        return self.sampler(public).event() if self.rounds else NoEvent()

    def releases(self) -> int:
        """The opening of the stream, and the draws of each round."""
        return 1 + self.rounds if self.rounds else 0

    def forecast(self, instance: WorkloadTask) -> Forecast:
        """How sharply a draw tells the worst query from the others."""
        if not (self.rounds and self.draws):
            return NO_DRAW
        spread = 1.0 / self._temperature(instance.public)
        found = Finding(
            spread, "the error that makes a query e times as likely to be drawn, as a share of all units"
        )
        meaning = "there is no formula for the error of a model; see the indicators"
        return Forecast(meaning=meaning, indicators={"temperature": found})

    def _temperature(self, public: Public) -> float:
        """beta: T K (beta factor / n)^2 / 8 is 1 / (2 z^2)."""
        draws = self.rounds * self.draws
        return 2.0 / (self.noise_multiplier * item_range(public) * math.sqrt(draws))

    def fit_seconds(self, workload: Workload) -> float:
        likelihoods = 4e-8 * self.rounds**2 * self.iterations * workload.size
        return fit_seconds(self.rounds * self.iterations + FINAL_ITERATIONS, workload) + likelihoods

    def run(self, curator: Curator, workload: Workload) -> Outcome:
        """Draw, refit."""
        weights = Histogram.uniform(workload.levels).weights
        if self.rounds == 0:
            return Outcome(Histogram(workload.levels, weights), Status.FINISHED)
        unstructured = workload.queries is not None
        mean = curator.hold_mean(
            QueryMeans(workload=workload) if unstructured else MarginalMeans(workload=workload)
        )
        stream = curator.stream("drawn queries", self.sampler(curator.public), (2 * workload.size,))
        curator.announce("drawing queries")
        answer_map, beta = AnswerMap(workload), self._temperature(curator.public)
        rounds: list[Draws] = []
        for t in range(self.rounds):
            base = answer_map.answers(weights)
            stream.ask("add", SignedErrors(mean=mean, modelled=base - 0.5 if unstructured else base))
            # Smaller scores are likelier, so the first half, held - modelled, stands for the negative queries.
            drawn = (np.asarray(stream.ask("draw"), np.int64) + workload.size) % (2 * workload.size)
            rounds.append(Draws(base, beta, drawn))
            last = t + 1 == self.rounds
            fit = MirrorFit(
                iterations=FINAL_ITERATIONS if last else self.iterations,
                curvature=beta**2 * self.draws * (t + 1),
                entropy=self.entropy,
            )
            weights = fit.fit(answer_map, Likelihood(rounds), weights)
        return Outcome(Histogram(workload.levels, weights), Status.FINISHED)
