"""Private multiplicative weights: answer queries one by one, from the model while it is right, else from the data.

Source: Hardt, Rothblum 2010.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.curator.handles import HiddenMean, Stream
from privopt.ledger.events import Event, NoEvent, Repeated
from privopt.ledger.events import Sequence as EventSequence
from privopt.mechanisms.tests import AboveThreshold
from privopt.planning.cell_weights import WorkloadTask, loudness
from privopt.planning.plan import Finding
from privopt.planning.task import Forecast
from privopt.precision import in_float64
from privopt.problems.workload import Workload
from privopt.public import Public
from privopt.queries.marginals import MarginalMeans, TableAnswer, TableAnswerError
from privopt.result import Outcome, Status
from privopt.solvers.fields import derived, number
from privopt.solvers.needs import Need
from privopt.synthesis.base import FewCells, Histogram, Synthesizer
from privopt.synthesis.mirror_fit import AnswerMap


@dataclass(frozen=True, kw_only=True)
class PrivateMultiplicativeWeights(Synthesizer):
    """Questions in a stream; a private test says whether the model's answer is off by more than the threshold.

    An easy question is answered by the model. A hard one is answered from the data with Gaussian noise, and the weights
    take a multiplicative step of half the threshold towards that answer; the test is then opened, and paid for, anew.
    `run` asks the workload's queries in their order; `session` lets a caller ask as they like.

    Attributes:
        noise_multiplier: z of the whole run, see `Synthesizer`.
        questions: how many `run` asks, the workload's queries over and over.
        updates: U, how many hard questions there may be, at least 0.
        threshold: of the error, as a share of all units.
        tests_share: of the budget, for the tests.
    Guarantee:
        U tests of pure privacy and U Gaussian releases: (epsilon, delta)-DP whatever is asked and in whatever order,
        also if a question depends on earlier answers.
    Differs from the paper:
        one Gaussian answer a hard question in place of Laplace noise on all; steps of fixed length.
    Source:
        Hardt, Rothblum 2010, Figure 1; Dwork, Roth 2014, algorithm 6 (the sparse vector inside).
    """

    name: ClassVar[str] = "pmw"
    needs: ClassVar[tuple[Need, ...]] = (FewCells(),)

    questions: int = derived(at_least=0)
    updates: int = derived(at_least=0)
    tests_share: float = number(0.5, above=0, below=1)
    threshold: float = derived(above=0, below=1)

    def default_questions(self, task: WorkloadTask) -> int:
        """Each query once."""
        return task.problem.size

    def default_updates(self, task: WorkloadTask) -> int:
        """sqrt(kappa) / 2, kappa the loudness of the data; at most one a query."""
        return min(max(1, round(math.sqrt(loudness(task)) / 2)), task.problem.size)

    def default_threshold(self, task: WorkloadTask) -> float:
        """The error above which a query is answered from the data: six times the noise of a test."""
        if not task.is_private:
            return 1e-6
        return min(0.5, 6.0 * math.sqrt(max(1, self.updates) / self.tests_share) / loudness(task))

    @property
    def adaptive(self) -> bool:
        """It pays for what turns out to be hard."""
        return True

    def test(self) -> AboveThreshold:
        """The test until one hard question: pure epsilon e with e^2 / 2 its share of 1 / (2 z^2)."""
        if not self.is_noisy:
            return AboveThreshold(self.threshold, math.inf, math.inf)
        pure = max(
            math.sqrt(self.tests_share / self.updates) / self.noise_multiplier, 1e-9
        )  # priced as it is
        return AboveThreshold(self.threshold, *AboveThreshold.best_split(pure))

    def event(self, public: Public) -> Event:
        """As many tests and answers as there are updates."""
        del public
        if self.updates == 0:
            return NoEvent()
        answer = self.gaussian((1.0 - self.tests_share) / self.updates)
        return Repeated(EventSequence((self.test().event(), answer.event())), self.updates)

    def releases(self) -> int:
        """A test's opening and an answer for each update, and a hit or none for each question."""
        return 2 * self.updates + self.questions if self.updates else 0

    def forecast(self, instance: WorkloadTask) -> Forecast:
        """How wrong an answer by the model may be."""
        found = Finding(
            self.threshold, "about the error of an answer that the model gives, as a share of all units"
        )
        meaning = "the bound of the source holds if the updates suffice; see the indicators"
        return Forecast(meaning=meaning, indicators={"threshold": found})

    def fit_seconds(self, workload: Workload) -> float:
        return self.questions * (1e-3 + 1e-8 * workload.universe * len(workload.levels))

    def session(self, curator: Curator, workload: Workload) -> "Session":
        """Ask questions of one's own choice.

        Raises:
            ValueError: the program is not configured, or cannot run on these data.
        """
        self.check_configured()
        self.check_applicable(workload, curator.public)
        return Session(self, curator, workload)

    def run(self, curator: Curator, workload: Workload) -> Outcome:
        """Ask the workload's queries in order."""
        session, answers = self.session(curator, workload), np.zeros(self.questions)
        answer_map = AnswerMap(workload)
        curator.announce("answering queries")
        for question in range(self.questions):
            answers[question] = session.answer(_values(answer_map, question % workload.size))
        status = Status.BUDGET_SPENT if self.updates and session.left == 0 else Status.FINISHED
        findings = {
            "answers": Finding(answers, "the answers, in the order of the questions"),
            "hard_questions": Finding(self.updates - session.left, "how many were answered from the data"),
        }
        return Outcome(session.model(), status, findings)


class Session:
    """An open conversation: the model so far, and how many hard questions are left."""

    def __init__(self, program: PrivateMultiplicativeWeights, curator: Curator, workload: Workload) -> None:
        self._program, self._curator, self._levels = program, curator, workload.levels
        self._weights = Histogram.uniform(workload.levels).weights
        self.left = program.updates
        self._mean: HiddenMean | None = None
        self._test: Stream | None = None
        if self.left:
            joint = Workload(workload.levels, sets=(tuple(range(len(workload.levels))),))
            self._mean = curator.hold_mean(MarginalMeans(workload=joint))
            self._test = self._opened()

    def answer(self, values: NDArray[np.float64]) -> float:
        """The answer to a query.

        Args:
            values: (N,) q(z) in [0, 1] for every cell z of the joint table, the first column running fastest. Public.
        """
        guess = float(values @ self._weights)
        if self._test is None:
            return guess
        with in_float64():
            return self._tested(self._test, values, guess)

    def _tested(self, test: Stream, values: NDArray[np.float64], guess: float) -> float:
        """The guess if it passes the test, else an answer from the data."""
        error = TableAnswerError(mean=self._mean, values=values, place=0, modelled=guess)
        if not bool(test.ask("answer", error)):
            return guess
        noise = self._program.gaussian((1.0 - self._program.tests_share) / self._program.updates)
        found = float(self._curator.release(TableAnswer(mean=self._mean, values=values, place=0), noise))
        step = self._program.threshold / 2.0 * (1.0 if found > guess else -1.0)
        masses = self._weights * np.exp(step * values)
        self._weights = masses / masses.sum()
        self.left -= 1
        self._test = self._opened() if self.left else None
        return min(max(found, 0.0), 1.0)

    def model(self) -> Histogram:
        """The table so far."""
        return Histogram(self._levels, self._weights)

    def _opened(self) -> Stream:
        return self._curator.stream("hard question?", self._program.test(), ())


def _values(answer_map: AnswerMap, query: int) -> NDArray[np.float64]:
    """A query's values on every cell of the joint table."""
    unit = np.zeros(answer_map.workload.size)
    unit[query] = 1.0
    return answer_map.adjoint(unit)
