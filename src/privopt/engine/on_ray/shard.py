"""The parts that one worker holds, in its own process: it reads them itself, and answers with one sum over them all."""

import contextlib
import dataclasses
import operator
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from threadpoolctl import threadpool_limits

from privopt.data.places import GivenPlaces
from privopt.data.record_source import Description, RecordSource
from privopt.data.units import Units
from privopt.engine.drawn_rows import DrawnRows, drawn_rows
from privopt.engine.fast_path import thread_count
from privopt.engine.in_process import InProcessEngine
from privopt.engine.on_ray.layout import PartPlan, SentStep, StoredRows, read_part, require_same
from privopt.engine.parts import ExactSum, Range
from privopt.engine.reference import ReferenceEngine
from privopt.later import is_jax, jax
from privopt.precision import in_float64, is_in_numpy, run_in_numpy
from privopt.problems import losses
from privopt.proofs.huberised_objective import HuberisedObjective
from privopt.proofs.huberised_sum import LossSum
from privopt.public import Public, Relation
from privopt.queries.base import MeanQuery
from privopt.queries.slopes import ClippedGradient

T = TypeVar("T")

SOURCE = 0  # what the units as they were read are known by
NO_PART = -1  # of a failure that is about records, and no part of the units


class Failure(NamedTuple):
    """What a worker says where it cannot answer: the kind of its error and the part, never the error's text."""

    kind: str
    part: int


class Question(NamedTuple):
    """A query without its numbers, which change from round to round, and these numbers.

    Attributes:
        form: the query, pickled with 0, 1, ... in the place of its leaves.
        leaves: NumPy arrays and numbers.
        radius: of the query.
        in_numpy: whether the run is in NumPy.
    """

    form: bytes
    leaves: list[Any]
    radius: float
    in_numpy: bool


class LossQuestion(NamedTuple):
    """What is asked about the sum of an objective's losses, see `LossSum`.

    Attributes:
        form: the objective, pickled.
        what: the gradient, the Hessian or its product.
        at: the point.
        vector: what the Hessian is multiplied by; empty where it is not.
        bound: of one record's part in the answer.
    """

    form: bytes
    what: Literal["gradient", "hessian", "product"]
    at: NDArray[np.float64]
    vector: NDArray[np.float64]
    bound: float

    def of(self, private_sum: LossSum) -> NDArray[np.float64]:
        """The answer of one part."""
        if self.what == "gradient":
            return private_sum.gradient(self.at)
        return (
            private_sum.hessian(self.at)
            if self.what == "hessian"
            else private_sum.hessian_product(self.at)(self.vector)
        )


class NumberedStep(NamedTuple):
    """A step, what it starts from, and what its outcome is known by."""

    known_as: int
    parent: int
    step: SentStep


class Preparation(NamedTuple):
    """What a worker does before it answers.

    Attributes:
        steps: to make, in order.
        forgotten: outcomes of steps to let go of.
    """

    steps: list[NumberedStep]
    forgotten: list[int]


def question_of(query: MeanQuery) -> Question:
    """A query as it is sent.

    Raises:
        TypeError: it cannot be pickled.
    """
    from ray.cloudpickle import cloudpickle  # late: an extra

    leaves, structure = jax.tree.flatten(query)
    form = jax.tree.unflatten(structure, list(range(len(leaves))))
    typed = [np.asarray(leaf) if isinstance(leaf, float) or is_jax(leaf) else leaf for leaf in leaves]
    return Question(cloudpickle.dumps(form), typed, float(query.radius()), is_in_numpy())


class Shard:
    """Holds some parts and computes on them. Everything it returns is private.

    Args:
        source: the records.
        description: what is public about the units.
        public: of all units.
        plans: of the parts to hold.
        threads: of a pass.
        code: digest of the driver's privopt, which must be the one here; None where the driver is this process.

    Privacy:
        Whatever goes wrong leaves as a `Failure`: an error's text may quote a cell. It sees rows and public points, and
        has neither noise, nor its keys, nor the ledger.
    """

    def __init__(
        self,
        source: RecordSource,
        description: Description,
        public: Public,
        plans: Sequence[PartPlan],
        threads: int,
        code: str | None = None,
    ) -> None:
        threadpool_limits(1, user_api="blas")  # a part's sum does not depend on how many cores there are
        self._source, self._description, self._public, self._code = source, description, public, code
        self._plans = {plan.index: plan for plan in plans}
        self._threads = min(thread_count(), threads)
        self._private_engines: dict[int, dict[int, InProcessEngine]] = {SOURCE: {}}
        self._structures: dict[bytes, Any] = {}
        self._private_losses: dict[int, dict[tuple[bytes, int], LossSum]] = {}
        warming = threading.Thread(
            target=warm, args=(source.width, source.is_sparse, source.by_user, description)
        )
        warming.daemon = True
        warming.start()
        self._private_vectors: tuple[Any, NDArray[np.float64]] | None = None  # of the last part asked for

    def load(self, part: int) -> Failure | None:
        """Read a part."""
        try:
            require_same(self._code)
            private_units = read_part(self._source, self._description, self._public, self._plans[part])
            self._private_engines[SOURCE][part] = self._engine(private_units)
        except Exception as error:
            return Failure(type(error).__name__, part)
        return None

    def ready(self, preparation: Preparation, known_as: int) -> None:
        """Answer once all that was asked before is done."""

    def answer(
        self,
        preparation: Preparation,
        known_as: int,
        question: Question,
        private_draws: Mapping[int, NDArray[np.int64] | None],
    ) -> ExactSum | Failure:
        """The sum over some parts.

        Args:
            preparation: what to do first.
            known_as: on which units.
            question: the query.
            private_draws: of each part that is asked, the positions of those who take part; None for all.
        """

        def asked(part: int, private_engine: InProcessEngine) -> ExactSum:
            with run_in_numpy() if question.in_numpy else contextlib.nullcontext():
                private_sum = private_engine.part_sum(self._query(question), private_draws[part])
            return _as_sent(ExactSum.of_part(private_sum, question.radius))

        return self._over(private_draws, preparation, known_as, asked, ExactSum.plus)

    def loss_sum(
        self, preparation: Preparation, known_as: int, asked: LossQuestion, parts: Sequence[int]
    ) -> ExactSum | Failure:
        """The sum over some parts of what is asked about an objective."""

        def answered(part: int, _: InProcessEngine) -> ExactSum:
            return ExactSum.of_part(asked.of(self._loss_sum(known_as, asked.form, part)), asked.bound)

        return self._over(parts, preparation, known_as, answered, ExactSum.plus)

    def combine(self, *private_sums: ExactSum | Failure) -> ExactSum | Failure:
        """The sum of several workers' sums, or the first failure among them."""
        failures = [answer for answer in private_sums if isinstance(answer, Failure)]
        if failures:
            return failures[0]
        return total_of([answer for answer in private_sums if isinstance(answer, ExactSum)])

    def drawn(
        self, preparation: Preparation, known_as: int, private_draws: Mapping[int, NDArray[np.int64]]
    ) -> list[DrawnRows] | Failure:
        """The rows at drawn positions of some parts, for a compiled loop."""

        def drawn(part: int, private_engine: InProcessEngine) -> list[DrawnRows]:
            private_draw = private_draws[part]
            return [drawn_rows(private_engine.units, private_draw, len(private_draw))]

        return self._over(private_draws, preparation, known_as, drawn, operator.add)

    def vectors(
        self, preparation: Preparation, known_as: int, question: Question, part: int, piece: Range
    ) -> NDArray[np.float64] | Failure:
        """What some units of a part contribute, see `Engine.gather`, from the first of a piece to the last.

        The part's are computed once, whoever asks for its first piece, and kept until its last has been sent.
        """
        leaves = [np.asarray(leaf).tobytes() for leaf in question.leaves]
        asked = (known_as, part, question.form, leaves)

        def some(part: int, private_engine: InProcessEngine) -> NDArray[np.float64]:
            del part
            if self._private_vectors is None or self._private_vectors[0] != asked:
                self._private_vectors = None  # let go of those of another part first
                self._private_vectors = (asked, private_engine.part_vectors(self._query(question)))
            private_all = self._private_vectors[1]
            if piece[1] >= len(private_all):
                self._private_vectors = None
            return private_all[slice(*piece)]

        return self._over([part], preparation, known_as, some)

    def there(
        self, preparation: Preparation, known_as: int, parts: Sequence[int]
    ) -> list[NDArray[np.bool_]] | Failure:
        """Which units of some parts have a record that counts."""

        def present(part: int, private_engine: InProcessEngine) -> list[NDArray[np.bool_]]:
            del part
            return [ReferenceEngine(private_engine.units).there()]

        return self._over(parts, preparation, known_as, present, operator.add)

    def taken(
        self, preparation: Preparation, known_as: int, part: int, private_positions: NDArray[np.int64]
    ) -> StoredRows | Failure:
        """The stored rows of the units at some positions of a part."""

        def stored(part: int, private_engine: InProcessEngine) -> StoredRows:
            del part
            units = private_engine.units
            return StoredRows.of(units.subset(GivenPlaces(private_positions), units.public.n))

        return self._over([part], preparation, known_as, stored)

    def _over(
        self,
        parts: Iterable[int],
        preparation: Preparation,
        known_as: int,
        compute: Callable[[int, InProcessEngine], T],
        add: Callable[[T, T], T] | None = None,
    ) -> T | Failure:
        """What is computed on each of some parts, added up; or what went wrong, and at which part."""
        numbers = list(parts)
        part = numbers[0]
        try:
            with in_float64(), np.errstate(all="ignore"):
                self._prepare(preparation)
                private_total = compute(part, self._private_engines[known_as][part])
                for part in numbers[1:]:
                    private_more = compute(part, self._private_engines[known_as][part])
                    assert add is not None
                    private_total = add(private_total, private_more)
            return private_total
        except Exception as error:
            return Failure(type(error).__name__, part)

    def _prepare(self, preparation: Preparation) -> None:
        for gone in preparation.forgotten:
            self._private_engines.pop(gone, None)
            self._private_losses.pop(gone, None)
        for known_as, parent, step in preparation.steps:
            self._private_engines[known_as] = {
                part: self._engine(step.applied(part, private_engine.units))
                for part, private_engine in self._private_engines[parent].items()
            }

    def _engine(self, private_units: Units) -> InProcessEngine:
        return InProcessEngine(
            private_units, threads=self._threads, private_ranges=[(0, private_units.private_count)]
        )

    def _loss_sum(self, known_as: int, form: bytes, part: int) -> LossSum:
        """The sum of an objective's losses over a part, which is kept as long as its units are."""
        private_sums = self._private_losses.setdefault(known_as, {})
        if (form, part) not in private_sums:
            from ray.cloudpickle import cloudpickle

            objective: HuberisedObjective = cloudpickle.loads(form)
            private_sums[form, part] = objective.over(*self._private_engines[known_as][part].records())
        return private_sums[form, part]

    def _query(self, question: Question) -> MeanQuery:
        """The query; that of an earlier round with other numbers, so that nothing is compiled anew."""
        if question.form not in self._structures:
            from ray.cloudpickle import cloudpickle

            self._structures[question.form] = jax.tree.structure(cloudpickle.loads(question.form))
        return jax.tree.unflatten(self._structures[question.form], question.leaves)


def _as_sent(private_sum: ExactSum) -> ExactSum:
    """The same as NumPy arrays, which take no backend of JAX where they arrive."""
    return ExactSum(*(np.asarray(limb) for limb in private_sum))


def total_of(private_sums: Sequence[ExactSum]) -> ExactSum:
    """The sum of some sums, at least one."""
    total = private_sums[0]
    for private_sum in private_sums[1:]:
        total = total.plus(private_sum)
    return total


# ---- Compiles the kernel of the usual queries while a worker reads its rows --------------------------------
def warm(width: int, is_sparse: bool, by_user: bool, description: Description) -> None:
    """Sum over two made-up records of the format of the real ones, so that whoever asks next waits for no compiler.

    One kernel serves the gradients of all losses that have a formula. Whatever fails here fails where it is asked for.

    Args:
        width: columns.
        is_sparse: whether rows are sparse.
        by_user: whether a unit is a user.
        description: what is public about the units.
    """
    keys = np.arange(2) if by_user else None
    made_up = dataclasses.replace(description, relation=Relation.REPLACE_ONE, n=2)
    with contextlib.suppress(Exception), in_float64(), np.errstate(all="ignore"):
        rows = np.zeros((2, width))
        units = Units.from_arrays(
            sparse.csr_array(rows) if is_sparse else rows, np.zeros(2), groups=keys, **made_up.arguments()
        )
        at: Any = np.zeros(units.public.d)  # no array of JAX, which would start a backend of its own
        InProcessEngine(units, threads=1).clipped_sum(ClippedGradient(loss=losses.logistic, at=at, clip=1.0))
