"""The contract of a synthesizer: that of a solver, and a model that answers its workload and samples rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from privopt.curator.transcript import Transcript
from privopt.data.units import Units
from privopt.ledger import accounting
from privopt.ledger.amounts import Budget
from privopt.problems.workload import Workload, cells_of
from privopt.public import Relation
from privopt.result import Result
from privopt.synthesis.base import Synthesizer, released_marginals
from privopt.synthesis.finishing import Finishing
from privopt.testing.programs import ProgramTrial
from privopt.testing.toy_data import ContractViolation, Records, Rule, TrialData

BUDGET = Budget(2.0, 1e-5)
_PAIRS = Workload.ways((3, 2, 4), 2)
_ROUNDING = 1e-9


def check_synthesizer(
    synthesizer: Synthesizer,
    workload: Workload = _PAIRS,
    *,
    budget: Budget = BUDGET,
    relations: Sequence[Relation | str] = ("replace-one", "add-or-remove-one"),
    records: int = 30,
    by_user: bool = False,
    seed: int = 0,
) -> None:
    """Hold a synthesizer to its promises on a small table.

    It models a table, its neighbours, and other tables that give the same answers; without data, recorded answers and
    zeros; and tables in which nothing is declared.

    Args:
        synthesizer: configured or not; open fields are derived.
        workload: what it shall answer; its columns are the table's.
        budget: calibrates the noise.
        relations: which tables are neighbours.
        records: how many rows there are.
        by_user: whether two rows are a user.
        seed: of rows and noise.
    Raises:
        ContractViolation: which names the promise that was broken.
        ValueError: the synthesizer cannot model such a table, or cannot be configured.
    """
    for relation in relations:
        data = ToyTable(
            problem=workload,
            relation=Relation.parse(relation),
            records=records,
            columns=len(workload.levels),
            by_user=by_user,
            seed=seed,
        )
        again = (
            f"check_synthesizer(synthesizer, workload, relations=[{data.relation.value!r}], records={records}, "
            f"by_user={by_user}, seed={seed})"
        )
        SynthesizerTrial(synthesizer, data, budget, again).require_all()


@dataclass(frozen=True)
class SynthesizerTrial(ProgramTrial):
    """A synthesizer on a made-up table."""

    by_itself: ClassVar[bool] = False

    def numbers(self, result: Result) -> list[NDArray[np.float64]]:
        """The model's own, where it shows them, and its answers to the workload."""
        answers = np.asarray(result.params.answers(self.data.problem), np.float64)
        return [*(part for part in super().numbers(result) if part.dtype.kind in "biuf"), answers]

    def require_all(self) -> None:
        """Every promise, and that there is a model."""
        super().require_all()
        self.require_model()
        self.require_finish()

    def require_model(self) -> None:
        """The model's answers are shares, and its rows are of the declared cells.

        Raises:
            ContractViolation: they are not.
        """
        model: Any = self.result.params
        answers = np.asarray(model.answers(self.data.problem))
        rows = np.asarray(model.sample(50, np.random.default_rng(0)))
        levels = np.asarray(self.data.problem.levels)
        if not np.all((answers >= -_ROUNDING) & (answers <= 1.0 + _ROUNDING)):
            raise self.violated(Rule.SHAPE, "an answer is no share of the rows", "its model")
        if rows.shape != (50, len(levels)) or not np.all((rows >= 0) & (rows < levels)):
            raise self.violated(Rule.SHAPE, "a sampled row holds what no column declares", "its model")

    def require_finish(self) -> None:
        """What `SyntheticData` does with it: its released marginals are read, and the model's error is measured.

        Raises:
            ContractViolation: that raises.
        """
        case = "the marginals that it released, and the error of its model"
        try:
            finished = replace(self, program=Finishing(inner=self.program, share=0.1).configure(self.task))
            result = finished.solve(finished.opened().curator(self.plain), case)
            measured = released_marginals(result.transcript, self.data.problem.levels)
        except ContractViolation:
            raise
        except Exception as error:
            what = f"`SyntheticData` would raise a {type(error).__name__} after it was paid: {error}"
            raise self.violated(Rule.RESULT, what, case) from error
        for one in measured:
            if len(one.shares) != cells_of(self.data.problem.levels, one.columns):
                raise self.violated(Rule.SHAPE, "a released marginal has other cells than its columns", case)

    def _is_planned(self, transcript: Transcript, wanted: Any) -> bool:
        if not self.configured.adaptive:
            return super()._is_planned(transcript, wanted)
        # How often it asks depends on the answers: what it asked costs no more than was planned.
        planned = self.configured.event(self.public)
        spent, paid = (
            accounting.epsilon(one, self.budget.delta, self.data.relation)
            for one in (transcript.event(), planned)
        )
        return spent <= paid * (1.0 + 1e-9)


@dataclass(frozen=True, kw_only=True)
class ToyTable(TrialData):
    """Rows of codes, skewed towards small ones, in the columns of a workload; targets are not looked at."""

    of_no_use: ClassVar[tuple[float, ...]] = (np.nan, 1e300, 0.0)

    def arrays(self) -> Records:
        """Codes (records, columns), and zeros."""
        rng = np.random.default_rng(self.seed)
        drawn = [rng.binomial(level - 1, 0.3, size=self.records) for level in self.problem.levels]
        return np.stack(drawn, axis=1).astype(np.float64), np.zeros(self.records)

    def stored(self, features: NDArray[np.float64], targets: NDArray[np.float64], **described: Any) -> Units:
        """Rows as units of this description."""
        del targets
        return Units.from_codes(features, levels=self.problem.levels, **described)

    def instead_of(self) -> dict[str, NDArray[np.float64]]:
        """Another row, and what no column declares."""
        row = self.arrays()[0][3]
        return {
            "another row": (row + 1) % 2,
            "a huge row": np.full_like(row, 1e300),
            "a row with NaN": np.full_like(row, np.nan),
            "undeclared values": row + 0.5,
        }

    def others(self) -> dict[str, Records]:
        """Rows of the opposite codes."""
        codes, targets = self.arrays()
        return {"other rows": (np.asarray(self.problem.levels) - 1 - codes, targets)}
