"""What is promised of any program over a curator, tried on made-up data: solvers, solvers of games, synthesizers."""

import ast
import inspect
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from privopt.curator.audit import Audit
from privopt.curator.base import Curator
from privopt.curator.dry_run import DryRun
from privopt.curator.handles import StreamRequest
from privopt.curator.local import LocalCurator
from privopt.curator.replay import Recorded, Replay
from privopt.curator.run import Run
from privopt.curator.transcript import Transcript
from privopt.data.units import Units
from privopt.engine.protocol import Engine
from privopt.errors import BudgetExceeded, PlanMismatch
from privopt.later import jax
from privopt.ledger.amounts import Budget
from privopt.ledger.default_account import nothing_private
from privopt.ledger.events import Event, leaf_counts
from privopt.ledger.payer import Payer, Unlimited
from privopt.mechanisms.base import StreamMechanism
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.vertex_stream import VertexStream
from privopt.planning.task import Task
from privopt.precision import in_float64
from privopt.public import Public
from privopt.queries.base import Query, StatisticOfHeld
from privopt.result import Result
from privopt.solvers.program import Program
from privopt.status import Status
from privopt.testing.mechanisms import check_mechanism, reused
from privopt.testing.queries import SLACK, fault_of, quietly, require_own_clip
from privopt.testing.toy_data import ContractViolation, Rule, Setting, TrialData


# ---- A curator that holds data and answers what was answered on others: who looks past that is found out ---
class Forced(Recorded, LocalCurator):
    """Repeats the answers of a transcript over units that it was not recorded on.

    Args:
        data: the units that are there to be looked at.
        recorded: what is answered.
        noise: cuts the units; of the same seed as the run's into the same blocks.
    """

    def __init__(
        self, data: Units | Engine, recorded: Transcript, *, noise: NoiseSource | None = None
    ) -> None:
        LocalCurator.__init__(
            self,
            data,
            Unlimited(data.public.relation),
            noise=NoiseSource(0) if noise is None else noise,
            transcript=Transcript(
                data.public.relation, seeded=recorded.seeded, exact_noise=recorded.exact_noise
            ),
        )
        self.transcript.eager = recorded.eager
        self.repeat(recorded)


@dataclass(frozen=True)
class ProgramTrial:
    """A program on made-up data. Each `require_...` is one promise.

    Attributes:
        program: as it was given.
        data: what it is tried on.
        budget: what the noise is calibrated to.
        again: the call that repeats all.
    """

    program: Any
    data: TrialData
    budget: Budget
    again: str

    by_itself: ClassVar[bool] = True  # whether a query that moves too far is asked alone, on rows of numbers

    @property
    def task(self) -> Task[Any]:
        """What the program is configured for."""
        return Task(self.data.problem, self.public, self.budget)

    def numbers(self, result: Result) -> list[NDArray[np.float64]]:
        """What a result says in numbers: all that must be finite, and the same in a replay."""
        return [np.asarray(leaf) for leaf in jax.tree.leaves(result.params)]

    def require_all(self) -> None:
        """Every promise.

        Raises:
            ContractViolation: which names the one that was broken.
        """
        with in_float64():
            self.require_control()
            self.require_plan()
            self.require_repeatable()
            self.require_sensitivities()
            self.require_coupling()
            self.require_ordinary_ending()
            self.require_names()

    def violated(self, rule: Rule, found: str, case: str) -> ContractViolation:
        case = f"{self.data.relation.value}, {case}"
        return ContractViolation(rule, self.program, found, case=case, repeat=self.again)

    @property
    def public(self) -> Public:
        return self.plain.public

    @cached_property
    def plain(self) -> Units:
        return self.data.plain()

    @cached_property
    def configured(self) -> Any:
        """The program with every field given."""
        return self.program.configure(self.task)

    @cached_property
    def planned(self) -> Event:
        return self.configured.event(self.public)

    def opened(self) -> Run:
        """A run whose ledger holds the plan and refuses anything else."""
        given = getattr(self.program, "noise_multiplier", None) is not None
        budget = replace(self.budget, epsilon=1e6) if given else self.budget
        noise = NoiseSource(self.data.seed + 3)
        with nothing_private():  # the records are made up: no account pays for them
            return Run(type(self.program).__name__, self.planned, budget, self.public, noise=noise)

    def solve(self, curator: Curator, case: str) -> Result:
        """Run on a ledger that refuses what is not in the plan.

        Raises:
            ContractViolation: a release was refused, or data make it raise or warn.
        """
        with quietly(self.program, self.again):
            try:
                return self.configured.solve(curator, self.data.problem)
            except (BudgetExceeded, PlanMismatch) as error:
                raise self.violated(Rule.PLAN, f"a release is refused: {error}", case) from error
            except ContractViolation:
                raise
            except Exception as error:
                if "sensitivity is infinite" in str(error):
                    raise self.violated(Rule.CLIP, f"a release is refused: {error}", case) from error
                if "states the sensitivity" in str(error):
                    raise self.violated(Rule.SENSITIVITY, f"a release is refused: {error}", case) from error
                raise self.violated(Rule.QUIET, f"it raises a {type(error).__name__}", case) from error

    @cached_property
    def result(self) -> Result:
        """What it finds on the data."""
        return self.solve(self.opened().curator(self.plain), "the data themselves")

    def require_control(self) -> None:
        """On other data with the same answers it asks for the same, with the same noise, and ends the same way."""
        wanted = self.result
        for name, units in self.data.strangers():
            case = f"the same answers over {name}"
            counted = name == "half of the units"
            difference = self._forced(units, wanted)
            if difference is None:
                continue
            if self._forced(self.plain, wanted) is not None:
                what = "on the same data and answers it does not do the same: by a clock, or random numbers of its own"
                raise self.violated(Rule.REPEATABLE, what, case)
            rule = Rule.COUNT if counted else difference[0]
            what = "depends on how many units there are" if counted else "depends on the records themselves"
            raise self.violated(rule, f"{difference[1]} {what}", case)

    def _forced(self, units: Units, wanted: Result) -> tuple[Rule, str] | None:
        """What is not as in another run when the answers are; None if nothing is."""
        try:
            found = self.configured.solve(Forced(units, wanted.transcript), self.data.problem)
        except Exception as error:
            return Rule.CONTROL, f"what it asks for ({type(error).__name__})"
        if asked_in(found.transcript) != asked_in(wanted.transcript):
            return Rule.CONTROL, "which releases it asks for, or how many,"
        for what, kept in (("the sensitivity", "sensitivity"), ("the noise", "scale")):
            for line, other in zip(found.transcript, wanted.transcript, strict=True):
                if not _same(getattr(line, kept), getattr(other, kept)):
                    return Rule.RESULT, f"{what} of {line.name!r}"
        if found.status is not wanted.status:
            return Rule.CONTROL, "how it ends"
        if not self._alike(found, wanted):
            return Rule.RESULT, "the value of its parameters"
        if not _same_words(found, wanted):
            return Rule.RESULT, "what it finds beside its parameters"
        return None

    def _alike(self, one: Result, other: Result) -> bool:
        pair = self.numbers(one), self.numbers(other)
        return len(pair[0]) == len(pair[1]) and all(_same(*parts) for parts in zip(*pair, strict=True))

    def require_coupling(self) -> float:
        """Hidden scores that vertices are drawn from move by no more than was paid for, on neighbours with equal draws.

        Returns:
            The largest share of the range that a unit moved them by; 0 where nothing is drawn from a stream.
        """
        shown = 0.0
        for name, left, right, _ in self.data.neighbours(last=True):  # the same draws are then by position
            run = self.opened()
            watch = Watched(left, run.ledger, noise=NoiseSource(self.data.seed + 4))
            result = self.solve(watch, f"neighbours by {name}")
            if not watch.drawn:
                return 0.0
            coupled = Coupled(right, result.transcript, noise=NoiseSource(self.data.seed + 4))
            again = self.solve(coupled, f"neighbours by {name}, with the same draws")
            if not self._alike(again, result) or not _same_words(again, result):
                what = "with the same draws and releases it ends otherwise on a neighbour"
                raise self.violated(Rule.RESULT, what, f"neighbours by {name}")
            share = largest_share(watch.drawn, coupled.drawn)
            if share > 1.0 + 1e-9:
                what = f"one unit moves hidden scores by {share:.4g} times the range that was paid for"
                raise self.violated(Rule.HIDDEN_MOVE, what, f"neighbours by {name}")
            shown = max(shown, share)
        return shown

    def require_plan(self) -> None:
        """Transcript, dry run and plan hold the same releases, and `scaled_event` is the event of `scaled`."""
        program: Program[Any] = self.configured
        if type(program).scaled_event is not Program.scaled_event:
            stated, due = (program.scaled_event(self.public, 1.1), program.scaled(1.1).event(self.public))
            if priced(stated) != priced(due):
                what = "`scaled_event` states another event than that of `scaled`"
                raise self.violated(Rule.PLAN, what, "the noise times 1.1")
        wanted, case = priced(self.planned), "a run on data, and one on zeros"
        rehearsal = DryRun(self.public)
        self._without_data(rehearsal, case)
        for name, transcript in (
            ("the transcript", self.result.transcript),
            ("a dry run", rehearsal.transcript),
        ):
            if not self._is_planned(transcript, wanted):
                raise self.violated(Rule.PLAN, f"{name} does not hold what `event` plans", case)
        made, stated = self.result.transcript.releases, self.configured.releases()
        if made > stated or (made < stated and not self.configured.adaptive):
            raise self.violated(Rule.PLAN, f"it makes {made} releases where `releases` states {stated}", case)

    def _is_planned(self, transcript: Transcript, wanted: Any) -> bool:
        return priced(transcript.event()) == wanted

    def require_repeatable(self) -> None:
        """A replay, which holds no data at all, gives the same bits."""
        case = "a replay of recorded answers"
        again = self._without_data(Replay(self.result.transcript, self.public), case)
        alike = self._alike(again, self.result) and _same_words(again, self.result)
        if not alike or again.status is not self.result.status:
            raise self.violated(Rule.REPEATABLE, "a replay gives another result", case)

    def _without_data(self, curator: Curator, case: str) -> Result:
        try:
            return self.configured.solve(curator, self.data.problem)
        except Exception as error:
            what = f"without data it raises a {type(error).__name__}: {error}"
            raise self.violated(Rule.RESULT, what, case) from error

    def require_sensitivities(self) -> int:
        """No unit moves what is released by more than is stated, and every release has noise of its own.

        Returns:
            How many releases were compared.
        """
        checked: set[object] = set()
        compared = 0
        for name, left, right, place in self.data.neighbours():
            case = f"neighbours by {name}, unit {place + 1}"
            run = self.opened()
            audit = Audit(left, right, run.ledger, noise=run.noise, place=place)
            self.solve(audit, case)
            compared += len(audit.moves)
            self._require_moves(audit, case)
            shared = reused([added for _, added in audit.added])
            if shared is not None:
                raise self.violated(Rule.NOISE_REUSED, shared, case)
            for mechanism in {one for one, _ in audit.added if _is_own(one)} - checked:
                check_mechanism(mechanism, relation=self.data.relation)
                checked.add(mechanism)
            for query in audit.asked:
                if self.by_itself and _is_own(query) and type(query) not in checked:
                    checked.add(type(query))
                    require_own_clip(query, columns=self.data.columns, row_bound=1.0)
        return compared

    def _require_moves(self, audit: Audit, case: str) -> None:
        ratios = [ratio for _, ratio in audit.moves]
        worst = int(np.argmax(ratios)) if ratios else 0
        if not ratios or ratios[worst] <= SLACK:
            return
        query, ratio = audit.asked[worst], ratios[worst]
        rule, what = self._fault(query, ratio)
        raise self.violated(rule, f"{what}, at release {worst + 1}, a {query.name}", case)

    def _fault(self, query: Query, ratio: float) -> tuple[Rule, str]:
        """Why a query moves too far, asked of it alone; of what a curator holds there is only how far."""
        setting = Setting(
            columns=self.data.columns,
            relation=self.data.relation,
            layout="dense users" if self.data.by_user else "dense",
        )
        if isinstance(query, StatisticOfHeld) or not math.isfinite(ratio) or not self.by_itself:
            kind = Rule.SENSITIVITY if math.isfinite(ratio) else Rule.NOT_FINITE
            return kind, f"one unit moves a statistic by {ratio:.4g} times its sensitivity"
        try:
            return fault_of(query, ratio, setting)
        except Exception:  # it cannot be asked alone
            return Rule.SENSITIVITY, f"one unit moves a value by {ratio:.4g} times its sensitivity"

    def require_ordinary_ending(self) -> None:
        """Whatever the data, it raises nothing, the parameters are finite and a status says how it ended."""
        for name, units in self.data.hopeless():
            result = self.solve(self.opened().curator(units), name)
            if not all(np.all(np.isfinite(part)) for part in self.numbers(result)):
                raise self.violated(Rule.FINITE_RESULT, "a parameter is not finite", name)
            if not isinstance(cast(object, result.status), Status):
                what = f"its status is a {type(result.status).__name__}, not a `Status`"
                raise self.violated(Rule.FINITE_RESULT, what, name)

    def require_names(self) -> None:
        """Its source names nothing private, and nothing of a curator that begins with an underscore."""
        for name in private_names_in(type(self.program)):
            what = f"its source names `{name}`, which a solver has no business with"
            raise self.violated(Rule.NAMES, what, "the source of its class")


def priced(event: Event) -> tuple[Any, Any]:
    """What an event counts, without blocks that release nothing of their own: a transcript has no line for them."""
    counts, parallels = leaf_counts(event)
    branches = [([priced(branch) for branch in node.events], count) for node, count in parallels]
    return counts, [one for one in branches if any(branch != ({}, []) for branch in one[0])]


def asked_in(transcript: Transcript) -> list[tuple[Any, ...]]:
    """What was asked for, in order: all of a transcript that must be public but for sensitivities and noise."""
    return [(line.name, line.event, line.count, line.noise, line.sampling) for line in transcript]


def private_names_in(kind: type) -> Iterator[str]:
    """Names in a class's source that begin with `private_`, or lead behind the curator; none if there is no source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):
        return
    for node in ast.walk(tree):
        names = (
            [node.id]
            if isinstance(node, ast.Name)
            else [node.attr]
            if isinstance(node, ast.Attribute)
            else []
        )
        yield from (name for name in names if name.startswith("private_") or name == "evaluate")


def _is_own(part: object) -> bool:
    """Whether somebody else wrote it: the library's own are checked by its own tests."""
    return not type(part).__module__.startswith("privopt.")


def _same_words(one: Result, other: Result) -> bool:
    """Whether two results say the same beside their parameters: findings and pictures, all of which a report shows."""
    says = [jax.tree.leaves(_leaves_in([dict(each.findings), each.pictures])) for each in (one, other)]
    return len(says[0]) == len(says[1]) and all(map(_same_leaf, *says))


def _leaves_in(value: Any) -> Any:
    """Frozen values as their fields, so that nothing in them is passed over."""
    if is_dataclass(value) and not isinstance(value, type):
        return [_leaves_in(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, Mapping):
        members = cast("Mapping[str, Any]", value)
        return [[name, _leaves_in(members[name])] for name in sorted(members)]
    if isinstance(value, list | tuple):
        return [_leaves_in(one) for one in cast("Sequence[Any]", value)]
    return repr(value) if value is None else value


def _same_leaf(one: Any, other: Any) -> bool:
    first, second = np.asarray(one), np.asarray(other)
    if first.dtype.kind in "fc" and second.dtype.kind in "fc":
        return np.array_equal(first, second, equal_nan=True)
    return bool(np.array_equal(first, second))


def _same(one: Any, other: Any) -> bool:
    """Whether two arrays, or two missing ones, are equal to the last bit."""
    if one is None or other is None:
        return one is other
    return np.array_equal(np.asarray(one), np.asarray(other), equal_nan=True)


# ---- Neighbours with the same draws: how far a unit moves the hidden scores that vertices are drawn from ---
# A run on one data set is watched; on its neighbour the same program is given the same answers, while its streams are
# fed with what the neighbour's records say. What the schedule was charged for bounds how far the two sets of logits
# differ.
@dataclass
class Drawn:
    """A stream that vertices were drawn from.

    Attributes:
        mechanism: its schedule.
        state: its hidden state.
        private_logits: of every step, before the draw.
    """

    mechanism: VertexStream
    state: Any
    private_logits: list[NDArray[np.float64]] = field(default_factory=list[NDArray[np.float64]])


def _note(drawn: list[Drawn], request: StreamRequest, state: Any) -> None:
    """Keep the logits that a request is about to draw from."""
    if not isinstance(request.mechanism, VertexStream) or request.name != "draw":
        return
    mechanism = cast("Any", request.mechanism)
    stream = next((one for one in drawn if one.state is state), None)
    if stream is None:
        stream = Drawn(mechanism, state)
        drawn.append(stream)
    stream.private_logits.append(np.array(mechanism._logits(state, state.drawn), np.float64))


class Watched(LocalCurator):
    """A curator that keeps the logits of all draws, its children's as well."""

    def __init__(self, data: Units | Engine, ledger: Payer, *, noise: NoiseSource) -> None:
        super().__init__(data, ledger, noise=noise)
        self.drawn: list[Drawn] = []

    def _answer_stream(self, request: StreamRequest, state: Any) -> Any:
        _note(self.drawn, request, state)
        return super()._answer_stream(request, state)


class Coupled(Forced):
    """Answers from a transcript while the streams are fed with the records at hand; keeps the logits of all draws."""

    def __init__(self, data: Units | Engine, recorded: Transcript, *, noise: NoiseSource) -> None:
        super().__init__(data, recorded, noise=noise)
        self.drawn: list[Drawn] = []

    def _open_stream(self, name: str, mechanism: StreamMechanism, shape: tuple[int, ...]) -> Any:
        super()._open_stream(name, mechanism, shape)
        return LocalCurator._open_stream(self, name, mechanism, shape)

    def _answer_stream(self, request: StreamRequest, state: Any) -> Any:
        _note(self.drawn, request, state)
        LocalCurator._answer_stream(self, request, state)
        return super()._answer_stream(request, state)


def largest_share(one: list[Drawn], other: list[Drawn]) -> float:
    """How far the logits of two runs with the same draws differ, over the range of the pattern that allows it best.

    A step before the items of a pattern may not move at all: a share is infinite if it does.
    """
    worst = 0.0
    for left, right in zip(one, other, strict=True):
        moved = np.ptp(np.asarray(left.private_logits) - np.asarray(right.private_logits), axis=1)
        stream = left.mechanism
        bounds = np.asarray([stream.range_bounds(pattern) for pattern in stream.participation])
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where(moved > 0, moved / bounds[:, : len(moved)], 0.0)
        worst = max(worst, float(np.min(np.max(shares, axis=1, initial=0.0))))
    return worst
