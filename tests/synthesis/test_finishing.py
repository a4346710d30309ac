"""A synthesizer whose model's error is released: its price, its replay, its neighbours."""

import numpy as np
import pytest

from privopt.curator.audit import Audit
from privopt.curator.dry_run import DryRun
from privopt.curator.local import LocalCurator
from privopt.curator.replay import Replay
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Task
from privopt.precision import double_precision
from privopt.problems.workload import Workload
from privopt.public import Public, Relation
from privopt.synthesis.adaptive_marginals import AdaptiveMarginals
from privopt.synthesis.finishing import ERROR, ERROR_NOISE, Finishing
from privopt.synthesis.mwem import MWEM
from privopt.synthesis.registry import GaussianMarginals

LEVELS, N = (3, 2, 4), 300
BUDGET = Budget(1.0, 1e-6)
WORK = Workload.ways(LEVELS, 2)
INNER = {
    "adaptive": AdaptiveMarginals(rounds=1, choices=2, components=4, steps=4),
    "mwem": MWEM(rounds=2, iterations=3),
    "gaussian": GaussianMarginals(iterations=3),
}


def codes(seed=0):
    return np.random.default_rng(seed).integers(0, 3, (N, 3))


def units(table, relation="replace-one"):
    return Units.from_codes(table, levels=LEVELS, relation=relation, n=N)


def configured(name, relation="replace-one", work=WORK, **options):
    with double_precision():
        public = Public.of_codes(N, LEVELS, Relation.parse(relation))
        return Finishing(inner=INNER[name], **options).configure(Task(work, public, BUDGET))


@pytest.mark.later("adaptive-replace-one", "mwem-replace-one")
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
@pytest.mark.parametrize("name", INNER)
def test_it_releases_what_it_planned_replays_and_no_neighbour_moves_it_further(name, relation):
    table = codes()
    program = configured(name, relation)
    left = units(table, relation)
    table[7] = [2, 0, 3]
    right = units(table if relation == "replace-one" else np.delete(table, 7, axis=0), relation)
    ledger = Ledger(BUDGET, relation, plan=program.event(left.public))
    audit = Audit(left, right, ledger, noise=NoiseSource(seed=3))
    result = program.solve(audit, WORK)
    assert audit.moves
    assert max(ratio for _, ratio in audit.moves) <= 1.0
    assert result.transcript.releases == program.releases()
    assert result.transcript.epsilon(BUDGET.delta) <= BUDGET.epsilon
    assert ledger.spent_epsilon() == pytest.approx(1.0, rel=2e-3)
    again = program.solve(Replay(result.transcript, left.public), WORK)
    np.testing.assert_array_equal(again.params.answers(WORK), result.params.answers(WORK))
    assert again.findings[ERROR] == result.findings[ERROR]
    rehearsed = program.solve(DryRun(left.public), WORK)
    assert rehearsed.params.levels == LEVELS


def test_the_error_costs_its_share_and_nothing_where_there_is_none():
    public = Public.of_codes(N, LEVELS, Relation.REPLACE_ONE)
    shares = {share: configured("gaussian", share=share) for share in (0.0, 0.01, 0.5)}
    assert [program.releases() for program in shares.values()] == [1, 2, 2]
    inner = [float(program._modelling().noise_multiplier) for program in shares.values()]
    assert inner[1] / inner[0] == pytest.approx(0.99**-0.5, rel=1e-3)
    assert inner[2] / inner[0] == pytest.approx(0.5**-0.5, rel=1e-3)
    result = shares[0.0].solve(
        LocalCurator(units(codes()), Ledger(BUDGET, "replace-one", plan=shares[0.0].event(public))), WORK
    )
    assert ERROR not in result.findings


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5])
def test_a_multiplier_of_the_inner_one_stays_and_the_error_comes_on_top(share):
    public = Public.of_codes(N, LEVELS, Relation.REPLACE_ONE)
    task = Task(WORK, public, BUDGET)
    for given in (MWEM(rounds=2, noise_multiplier=50.0), GaussianMarginals(noise_multiplier=0.5)):
        program = Finishing(inner=given, share=share).configure(task)
        assert program._modelling().noise_multiplier == given.noise_multiplier
        assert program.plan(task).event == program.event(public)
        inner = given.configure(task).plan(task)
        assert program.plan(task).epsilon == pytest.approx(inner.epsilon, rel=0.02 if share < 0.1 else 0.7)
        assert (program.plan(task).epsilon > inner.epsilon) == (share > 0)


@pytest.mark.parametrize("work", [WORK, Workload(LEVELS, queries=np.eye(24)[:5])])
def test_without_noise_the_error_is_exact(work):
    table = codes()
    with double_precision():
        program = Finishing(inner=MWEM(rounds=0)).configure(
            Task(work, units(table).public, Budget(np.inf, 0.0))
        )
    curator = LocalCurator(
        units(table), Ledger(Budget(np.inf, 0.0), "replace-one", plan=program.event(units(table).public))
    )
    result = program.solve(curator, work)
    joint = np.bincount(np.minimum(table, np.array(LEVELS) - 1) @ [1, 3, 6], minlength=24) / N
    apart = np.abs(work.answers(joint) - work.answers(np.full(24, 1 / 24)))
    exact = (
        apart.mean()
        if work.queries is not None
        else np.mean([apart[place].sum() / 2 for place in work.slices])
    )
    assert result.findings[ERROR].value == pytest.approx(exact)
    assert result.findings[ERROR_NOISE].value == 0.0


def test_private_pgm_needs_released_marginals():
    answers = Workload(LEVELS, queries=np.eye(24)[:2])
    with pytest.raises(ValueError, match="Private-PGM fits released marginals of a workload of column sets"):
        configured("mwem", work=answers, engine="mbi")
    assert configured("mwem", engine="mbi").title == "mwem, fitted by Private-PGM"


def test_more_choices_than_marginals_are_refused_before_anything_is_read():
    few = Workload(LEVELS, sets=((0, 1), (2,)))
    public = Public.of_codes(N, LEVELS, Relation.REPLACE_ONE)
    with pytest.raises(ValueError, match="choose 2 marginals a round, and the workload has 1"):
        AdaptiveMarginals(rounds=1, choices=2).configure(Task(few, public, BUDGET))
