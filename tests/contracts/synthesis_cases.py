"""The synthesizers that every contract test runs over: add a line here and a newcomer is tested."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.mechanisms.noise import NoiseSource
from privopt.papers.pmw import PrivateMultiplicativeWeights
from privopt.problems.workload import Workload
from privopt.synthesis.adaptive_marginals import AdaptiveMarginals
from privopt.synthesis.base import Synthesizer
from privopt.synthesis.mwem import MWEM
from privopt.synthesis.query_game import QueryGame, QueryGameML
from privopt.synthesis.registry import GaussianMarginals

N = 30
BUDGET = Budget(2.0, 1e-5)
LEVELS = (3, 2, 4)
PAIRS = Workload.ways(LEVELS, 2)
TRIPLES = Workload.ways(LEVELS, 3)
QUERIES = Workload(LEVELS, queries=np.random.default_rng(0).integers(0, 2, size=(6, 24)).astype(float))
RELATIONS = ("replace-one", "add-or-remove-one")


@dataclass(frozen=True)
class SynthesisCase:
    """A synthesizer and a workload, of records or of users with two records each; what makes it release nothing."""

    name: str
    synthesizer: Synthesizer
    workload: Workload
    still: Mapping[str, Any] | None = field(default_factory=lambda: {"rounds": 0})
    by_user: bool = False


_ADAPTIVE = {"components": 4, "steps": 5}

EVERY_SYNTHESIZER = (
    SynthesisCase("adaptive marginals", AdaptiveMarginals(**_ADAPTIVE), PAIRS, still=None),
    SynthesisCase(
        "adaptive marginals, triples",
        AdaptiveMarginals(rounds=2, choices=2, start_share=0.3, **_ADAPTIVE),
        TRIPLES,
        still=None,
    ),
    SynthesisCase("adaptive marginals, users", AdaptiveMarginals(**_ADAPTIVE), PAIRS, None, by_user=True),
    SynthesisCase("gaussian marginals", GaussianMarginals(iterations=5), PAIRS, still=None),
    SynthesisCase("gaussian queries", GaussianMarginals(iterations=5), QUERIES, still=None),
    SynthesisCase("mwem", MWEM(iterations=3), PAIRS),
    SynthesisCase("mwem, queries", MWEM(rounds=3, iterations=3), QUERIES),
    SynthesisCase("mwem, users", MWEM(iterations=3), PAIRS, by_user=True),
    SynthesisCase("query game", QueryGame(rounds=4), PAIRS),
    SynthesisCase("query game, queries, users", QueryGame(rounds=4), QUERIES, by_user=True),
    SynthesisCase("query game, literal", QueryGame(variant="literal", rounds=4), PAIRS),
    SynthesisCase("dual query", QueryGame(data_player="oracle", rounds=4), PAIRS),
    SynthesisCase(
        "dual query, literal", QueryGame(variant="literal", data_player="oracle", rounds=4), QUERIES
    ),
    SynthesisCase("query game, likelihood", QueryGameML(rounds=3, draws=4, iterations=3), PAIRS),
    SynthesisCase("query game, likelihood, queries", QueryGameML(rounds=3, iterations=3), QUERIES),
    SynthesisCase(
        "multiplicative weights",
        PrivateMultiplicativeWeights(updates=3, threshold=0.1),
        PAIRS,
        {"updates": 0},
    ),
    SynthesisCase("multiplicative weights, queries", PrivateMultiplicativeWeights(), QUERIES, {"updates": 0}),
)
SYNTHESES = [(case, relation) for case in EVERY_SYNTHESIZER for relation in RELATIONS]
IDS = [f"{case.name}, {relation}" for case, relation in SYNTHESES]


def toy_codes(seed: int = 0):
    """Rows of codes, skewed towards small ones."""
    rng = np.random.default_rng(seed)
    return np.stack([rng.binomial(level - 1, 0.3, size=N) for level in LEVELS], axis=1).astype(float)


def as_units(case: SynthesisCase, codes: Any, relation: str) -> Units:
    """The rows as units; two records a user where the case is about users."""
    if not case.by_user:
        return Units.from_codes(codes, levels=LEVELS, relation=relation, n=N)
    return Units.from_codes(
        codes,
        levels=LEVELS,
        relation=relation,
        n=N // 2,
        groups=np.arange(len(codes)) // 2,
        max_records_per_user=3,
        noise=NoiseSource(7),
    )


def neighbours(case: SynthesisCase, relation: str, codes: Any, last: Any) -> list[Units]:
    """Two tables that differ in their last unit: its last record is another one, or the unit is gone."""
    other = codes.copy()
    other[-1] = last
    kept = -2 if case.by_user else -1
    sides = (codes, other) if relation == "replace-one" else (other, other[:kept])
    return [as_units(case, side, relation) for side in sides]
