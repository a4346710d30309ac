"""A marker in the data of every estimator, search, game and synthesizer, in whatever they leave, however they end."""

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.contracts import game_cases, synthesis_cases
from tests.support.configured_estimators import CLASSIFIERS, EVERY_ESTIMATOR, configured, toy_data
from tests.support.markers import NUMBER, found_in, said_by

from privopt.curator.local import LocalCurator
from privopt.engine.in_process import InProcessEngine
from privopt.estimators.fair import FairClassifier
from privopt.estimators.linear import LogisticRegression
from privopt.estimators.selection import PrivateSearchCV
from privopt.ledger.ledger import Ledger
from privopt.mean_of_users import user_mean
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Task


@dataclass(frozen=True)
class Fit:
    """Something that is fitted to arrays."""

    name: str
    made: Callable[[], Any]
    kind: Any = LogisticRegression
    by_user: bool = False


def searched() -> Any:
    model = configured(LogisticRegression, epsilon=None, delta=None)
    return PrivateSearchCV(model, {"alpha": [0.1, 1.0]}, epsilon=1.0, delta=1e-6)


FITS = [
    *(Fit(kind.__name__, lambda kind=kind: configured(kind), kind) for kind in EVERY_ESTIMATOR),
    *(
        Fit(f"{kind.__name__}, users", lambda kind=kind: configured(kind, solver="auto"), kind, by_user=True)
        for kind in EVERY_ESTIMATOR[:2]
    ),
    Fit("search", searched),
]


def in_turn(items: list[Any], every: int) -> list[Any]:
    """Each, most of them where there is time."""
    waits = (pytest.mark.audit,)
    return [
        pytest.param(item, id=item.name, marks=waits if place % every else ())
        for place, item in enumerate(items)
    ]


def marked(features: Any, targets: Any, *, target: bool = False) -> tuple[Any, Any]:
    """Data with the marker as two features of record 5, and as its target where that is a number."""
    features, targets = np.array(features, np.float64), np.array(targets, np.float64)
    features[5, :2] = NUMBER
    if target:
        targets[5] = NUMBER
    return features, targets


def assert_clean(surfaces: list[Any]) -> None:
    for place, surface in enumerate(surfaces):
        assert not found_in(surface), place


@pytest.mark.parametrize("fit", in_turn(FITS, 99))
def test_no_estimator_keeps_a_marker(fit: Fit) -> None:
    features, targets = marked(*toy_data(fit.kind), target=fit.kind not in CLASSIFIERS)
    groups = np.arange(len(targets)) // 2 if fit.by_user else None
    model = fit.made().fit(features, targets, groups=groups)
    report = model.privacy_
    texts = [repr(model), repr(vars(model)), str(report), report.to_html(), json.dumps(report.to_dict())]
    assert_clean([*texts, pickle.dumps(model), repr(model.plan_), json.dumps(model.plan_.to_dict())])


@pytest.mark.audit
def test_fair_models_and_means_of_users_keep_no_marker() -> None:
    features, targets = marked(*toy_data())
    labels = (targets > 0).astype(int)
    declared = {"classes": [0, 1], "sensitive_values": [0, 1], "shares": [0.5, 0.5]}
    model = FairClassifier(epsilon=1.0, delta=1e-6, bounds=(-1, 1), **declared)
    model.fit(features, labels, sensitive_features=np.arange(len(labels)) % 2)
    mean = user_mean(features, np.arange(len(labels)), epsilon=20.0, delta=1e-5, bound=2.0)
    assert_clean([repr(model), repr(vars(model)), pickle.dumps(model), repr(mean), pickle.dumps(mean)])


def left_by(curator: LocalCurator, result: Any) -> list[Any]:
    """What a run by hand leaves."""
    transcript = result.transcript
    return [
        *map(repr, (curator, curator.ledger, curator.transcript, curator.private_engine, result)),
        json.dumps(transcript.to_dict(values=True)),
        pickle.dumps(transcript),
        pickle.dumps(result),
    ]


@pytest.mark.parametrize("case", in_turn(list(game_cases.EVERY_GAME), 99))
def test_no_game_keeps_a_marker(case: game_cases.GameCase) -> None:
    relation = case.relations[0]
    units = game_cases.as_units(case, *marked(*game_cases.toy_rows(case), target=True), relation)
    assert found_in(np.asarray(units.private_features).tobytes())
    solver = case.solver.configure(Task(case.game, units.public, case.budget))
    ledger = Ledger(case.budget, relation, plan=solver.event(units.public))
    curator = LocalCurator(units, ledger, noise=NoiseSource(3))
    assert_clean(left_by(curator, solver.solve(curator, case.game)))


@pytest.mark.parametrize("case", in_turn(list(synthesis_cases.EVERY_SYNTHESIZER), 99))
def test_no_synthesizer_keeps_the_codes_of_its_rows(case: synthesis_cases.SynthesisCase) -> None:
    """Codes are small numbers, so the marker is all of them together."""
    units = synthesis_cases.as_units(case, synthesis_cases.toy_codes(), "replace-one")
    program = case.synthesizer.configure(Task(case.workload, units.public, synthesis_cases.BUDGET))
    ledger = Ledger(synthesis_cases.BUDGET, "replace-one", plan=program.event(units.public))
    curator = LocalCurator(units, ledger, noise=NoiseSource(3))
    private_codes = np.asarray(units.private_features)
    codes = {
        np.ascontiguousarray(private_codes, kind).tobytes(order)
        for kind in (private_codes.dtype, np.int64, np.float64)
        for order in ("C", "F")
    }
    for surface in left_by(curator, program.solve(curator, case.workload)):
        assert not found_in(surface, codes)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, RuntimeError])
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_fit_that_is_stopped_says_nothing_of_its_data(
    error: type[BaseException], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    summed = InProcessEngine.clipped_sum
    calls = 0

    def stopped(self: Any, *arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3 and where == "before":
            raise error
        private_sum = summed(self, *arguments, **more)
        if calls == 3:
            raise error
        return private_sum

    monkeypatch.setattr(InProcessEngine, "clipped_sum", stopped)
    features, targets = marked(*toy_data())
    with pytest.raises(error) as caught:
        configured(LogisticRegression).fit(features, (targets > 0).astype(int))
    assert_clean(said_by(caught.value))
