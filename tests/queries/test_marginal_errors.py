"""Functions of held marginals: what they compute, that their sensitivities are attained, and what they refuse."""

import numpy as np
import pytest

from privopt.curator.audit import distance
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.events import EveryUnit
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.choice import ExponentialMechanism
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems.workload import Workload
from privopt.queries.marginals import (
    CellErrors,
    HeldAnswer,
    HeldMarginal,
    MarginalDistances,
    MarginalMeans,
    MeanDistance,
    QueryMeans,
    SignedErrors,
    TableAnswer,
    TableAnswerError,
    centred_answers,
)

LEVELS, N = (3, 2), 8
PAIRS = MarginalMeans(workload=Workload(LEVELS, sets=((0, 1), (1,))))
ONE = MarginalMeans(workload=Workload(LEVELS, sets=((0, 1),)))
FIRST = np.zeros((2, 6))
FIRST[0, 0], FIRST[1, 5] = 1.0, 1.0
ANSWERS = QueryMeans(workload=Workload(LEVELS, queries=FIRST))


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


def held(rows, relation, query):
    units = Units.from_codes(np.array(rows).reshape(-1, 2), levels=LEVELS, relation=relation, n=N)
    curator = LocalCurator(units, Unlimited(units.public.relation), noise=NoiseSource(seed=1))
    return curator, curator.hold_mean(query)


def value(curator, query):
    return np.asarray(curator.private_value(query, EveryUnit(), None))


def neighbours(relation):
    """All units but one in cell (0, 0); the last one joins them, or stands in cell (2, 1), or is not there."""
    common = [[0, 0]] * (N - 1)
    return [[*common, [0, 0]], common if relation == "add-or-remove-one" else [*common, [2, 1]]]


# What is asked of the mean, of which data, under which relation, and how far it moves in units of 1 / n.
CASES = [
    (PAIRS, lambda mean: HeldMarginal(mean=mean, place=0), "replace-one", 2**0.5),
    (PAIRS, lambda mean: HeldMarginal(mean=mean, place=1), "add-or-remove-one", 1),
    (ANSWERS, lambda mean: HeldAnswer(mean=mean, place=0), "replace-one", 1),
    (ANSWERS, lambda mean: HeldAnswer(mean=mean, place=0), "add-or-remove-one", 0.5),
    (PAIRS, lambda mean: CellErrors(mean=mean, modelled=np.zeros(8)), "replace-one", 2),
    (PAIRS, lambda mean: SignedErrors(mean=mean, modelled=np.zeros(8)), "replace-one", 2),
    (PAIRS, lambda mean: SignedErrors(mean=mean, modelled=np.zeros(8)), "add-or-remove-one", 1),
    (ANSWERS, lambda mean: SignedErrors(mean=mean, modelled=np.zeros(2)), "replace-one", 2),
    (ANSWERS, lambda mean: SignedErrors(mean=mean, modelled=np.zeros(2)), "add-or-remove-one", 1),
    (ONE, lambda mean: MeanDistance(mean=mean, modelled=np.zeros(6)), "add-or-remove-one", 0.5),
    (ONE, lambda mean: MeanDistance(mean=mean, modelled=np.eye(6)[0]), "replace-one", 1),
    (PAIRS, lambda mean: TableAnswer(mean=mean, values=np.arange(6) == 0), "replace-one", 1),
    (
        PAIRS,
        lambda mean: TableAnswerError(mean=mean, values=np.arange(6) == 0, modelled=0.0),
        "add-or-remove-one",
        1,
    ),
]


@pytest.mark.parametrize(("query", "function", "relation", "moves"), CASES)
def test_the_stated_sensitivity_is_attained(query, function, relation, moves):
    values = []
    for rows in neighbours(relation):
        curator, mean = held(rows, relation, query)
        values.append(value(curator, function(mean)))
    stated = float(function(mean).sensitivity(curator.public))
    assert stated == pytest.approx(moves / N, rel=1e-9)
    assert distance(*values, function(mean).norm) == pytest.approx(stated, rel=1e-9)


@pytest.mark.parametrize(("relation", "range_"), [("replace-one", 4), ("add-or-remove-one", 2)])
def test_distances_move_by_a_range_of_twice_the_factor(relation, range_):
    """One marginal comes nearer, the other goes further: the model has the first, and nothing of the second."""
    work = MarginalMeans(workload=Workload((3, 3), sets=((0,), (1,))))
    rows = [[[0, 0]] * (N - 1) + [last] for last in ([1, 1], [0, 0])]
    if relation == "add-or-remove-one":
        rows[0] = rows[0][:-1]
    values = []
    for each in rows:
        units = Units.from_codes(each, levels=(3, 3), relation=relation, n=N)
        curator = LocalCurator(units, Unlimited(units.public.relation))
        mean = curator.hold_mean(work)
        # The first marginal is modelled as it is on the second side, the other as on the first.
        first = np.bincount([row[0] for row in rows[1]], minlength=3) / N
        second = np.bincount([row[1] for row in rows[0]], minlength=3) / N
        asked = MarginalDistances(mean=mean, modelled=np.concatenate([first, second]), penalties=np.zeros(2))
        values.append(value(curator, asked))
    assert distance(*values, "range") == pytest.approx(range_, rel=1e-12)
    assert float(asked.sensitivity(units.public)) == pytest.approx(range_, rel=1e-9)


def test_values_are_what_they_are_called():
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 3, (N, 2))
    joint = np.bincount(np.minimum(rows, np.array(LEVELS) - 1) @ [1, 3], minlength=6) / N
    truth, guess = PAIRS.workload.answers(joint), PAIRS.workload.answers(np.full(6, 1 / 6))
    curator, mean = held(rows, "replace-one", PAIRS)
    np.testing.assert_allclose(value(curator, HeldMarginal(mean=mean, place=1)), truth[6:])
    np.testing.assert_allclose(value(curator, CellErrors(mean=mean, modelled=guess)), np.abs(truth - guess))
    signed = np.concatenate([truth - guess, guess - truth])  # as both have weight 1, nothing is centred away
    np.testing.assert_allclose(value(curator, SignedErrors(mean=mean, modelled=guess)), signed, atol=1e-15)
    far = MarginalDistances(mean=mean, modelled=guess, penalties=np.array([0.5]), candidates=(1,))
    np.testing.assert_allclose(value(curator, far), [N * np.abs(truth - guess)[6:].sum() - 0.5])
    apart = MeanDistance(mean=mean, modelled=guess)
    distances = [np.abs(truth - guess)[part].sum() / 2 for part in (slice(6), slice(6, 8))]
    assert value(curator, apart) == pytest.approx(np.mean(distances))
    asked = np.array([0.5, 2.0, -1.0, np.nan, 1.0, 0.0])
    exact = joint @ [0.5, 1.0, 0.0, 0.0, 1.0, 0.0]
    assert value(curator, TableAnswer(mean=mean, values=asked)) == pytest.approx(exact)
    error = TableAnswerError(mean=mean, values=asked, modelled=0.9)
    assert value(curator, error) == pytest.approx(abs(exact - 0.9))
    curator, mean = held(rows, "replace-one", ANSWERS)
    model = centred_answers(ANSWERS.workload, np.full(6, 1 / 6))
    signed = np.array([joint[0], joint[5], -joint[0], -joint[5]]) - np.array([1, 1, -1, -1]) / 6
    np.testing.assert_allclose(value(curator, SignedErrors(mean=mean, modelled=model)), signed, atol=1e-15)
    assert value(curator, HeldAnswer(mean=mean, place=1)) == pytest.approx(joint[5] - 0.5)


def test_the_worst_cell_is_chosen_and_nobody_is_charged_for_holding():
    curator, mean = held([[0, 0]] * N, "replace-one", PAIRS)
    chosen = curator.release(CellErrors(mean=mean, modelled=np.zeros(8)), ExponentialMechanism(1e4))
    assert int(chosen) in (0, 6)
    assert [release.name for release in curator.transcript] == ["CellErrors"]


def test_another_mean_or_another_number_of_answers_is_refused():
    curator, mean = held([[0, 0]] * N, "replace-one", ANSWERS)
    with pytest.raises(
        TypeError, match="HeldMarginal is a function of MarginalMeans, and QueryMeans is held"
    ):
        HeldMarginal(mean=mean, place=0).sensitivity(curator.public)
    with pytest.raises(TypeError, match="MarginalDistances is a function of MarginalMeans"):
        MarginalDistances(mean=mean, modelled=np.zeros(2), penalties=np.zeros(1)).shape(curator.public)
    for kind in (CellErrors, SignedErrors):
        with pytest.raises(ValueError, match=r"modelled must have shape \(2,\).*got \(3,\)"):
            value(curator, kind(mean=mean, modelled=np.zeros(3)))
