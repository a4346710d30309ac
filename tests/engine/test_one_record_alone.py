"""A contribution is a function of one unit's records alone, to the last bit, whatever is computed beside it.

A clip far below rounding makes last bits visible, so a special function that iterates until the slowest of all records
has converged breaks a sensitivity. The first tests read the programs; the last one, in the audit, compares bits.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import betainc, gammainc
from tests.contracts.queries import AT, EVERY_QUERY, ROW_BOUND, D, is_of_codes
from tests.support.taint import touches

import privopt
from privopt.engine.general_path import (
    UnitChunk,
    chunk_contributions,
    contributions_of_records,
    unit_contributions,
)
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.constraints import LpBall
from privopt.public import Public
from privopt.queries.base import MeanQuery, RecordSum, query, static
from privopt.queries.lots import LocalPass
from privopt.queries.safeguards import row_form_of
from privopt.queries.slopes import ClippedGradient
from privopt.queries.values import ValueSum, called_on_host
from privopt.testing.search import drawn_unit
from privopt.testing.toy_data import settings

UNITS, RECORDS = 11, 3  # lengths that no other axis has
PUBLIC = Public(n=UNITS, d=D, row_bound=ROW_BOUND)
MEANS = {name: query for name, query in EVERY_QUERY.items() if isinstance(query, MeanQuery)}
# Loops that a file holds, and why no record meets another in them.
LOOPS = {
    "problems/projections.py": "each record's own point; once it has arrived, a step changes nothing of it",
    "proofs/huberised_objective.py": "of all data at once, and paid for as such",
}
SPECIAL = {"queries/smoothed.py": "of the distance of two public points"}
ROOMS = ("certify", "curator", "data", "engine", "mechanisms", "problems", "proofs", "queries")


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    with double_precision():
        yield


def empty_chunk() -> UnitChunk:
    shape = (UNITS, RECORDS)
    there, each = jnp.ones(shape, bool), jnp.ones(UNITS)
    return UnitChunk(jnp.zeros((*shape, D)), jnp.zeros(shape), there, each, jnp.arange(UNITS))


def found_in(asked: MeanQuery) -> Counter[str]:
    """What lets one unit of a chunk, or one row of a block, touch another."""
    chunk, found = empty_chunk(), Counter[str]()
    every = [True] * (len(chunk) - 1) + [False]  # positions are no secret
    if called_on_host(asked):
        assert isinstance(asked, ValueSum)
        values = jnp.zeros((UNITS, RECORDS, len(asked.points())))
        of_values = jax.vmap(jax.vmap(asked.of_values))
        traced = jax.make_jaxpr(
            lambda values, chunk: contributions_of_records(asked, chunk, of_values(values))
        )
        found.update(touches(traced(values, chunk), [True, *every], UNITS))
    else:
        whole = jax.make_jaxpr(lambda chunk: unit_contributions(asked, PUBLIC, chunk))(chunk)
        found.update(touches(whole, every, UNITS))
    form = row_form_of(asked, PUBLIC)
    if form is not None:
        predictions = jnp.zeros((UNITS, form.points.shape[1]))
        rows = jax.make_jaxpr(form.coefficients)(predictions, jnp.zeros(UNITS), jnp.ones(UNITS))
        found.update(touches(rows, [True] * 3, UNITS))
    return found


FIRST = list({type(asked): name for name, asked in reversed(MEANS.items())}.values())  # one of each class
SHARES = {
    "half of the classes": FIRST[::2],
    "the other half": FIRST[1::2],
    "the other queries": [name for name in MEANS if name not in FIRST],
}


@pytest.mark.later("the other queries")
@pytest.mark.parametrize("cases", SHARES)
def test_no_step_of_a_contribution_lets_one_unit_touch_another(cases: str) -> None:
    some = SHARES[cases]
    assert len(some) > 15
    assert {name: found for name in some if (found := found_in(MEANS[name]))} == {}


def test_only_projections_in_local_passes_take_as_long_as_the_slowest_unit() -> None:
    """As docs/sharp-edges.md says of running times."""
    ball = LpBall(1.3, p=1.5)
    asked = LocalPass(loss=losses.logistic, at=AT, step_size=0.5, clip=0.2, constraint=ball)
    assert set(found_in(asked)) == {"while: how often follows private values"}
    assert_each_alone(asked)


@query
class Odd(RecordSum):
    """Rows times what a step makes of targets."""

    step: Any = static()

    def radius(self) -> float:
        return 0.4

    def shape(self, public: Public) -> tuple[int, ...]:
        return (public.d,)

    def record_contribution(self, private_features: Any, private_target: Any) -> Any:
        return self.step(private_target) * private_features


def halved(value: Any) -> Any:
    return jax.lax.while_loop(lambda one: one > 1.0, lambda one: one / 2.0, value)


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (lambda value: betainc(0.5, 2.5, value), "regularized_incomplete_beta of private values"),
        (lambda value: gammainc(2.0, value), "igamma of private values"),
        (jax.jit(lambda value: betainc(0.5, 2.5, value)), "regularized_incomplete_beta of private values"),
        (halved, "while: how often follows private values"),
        (lambda value: jax.lax.map(halved, value[None])[0], "while: how often follows private values"),
    ],
)
def test_what_follows_other_records_is_told(step: Any, told: str) -> None:
    assert told in found_in(Odd(step=step))


@query
class Centred(ClippedGradient):
    """Coefficients less their mean over the block."""

    def row_form(self, public: Public) -> Any:
        form = super().row_form(public)
        assert form is not None
        coefficients = form.coefficients
        return replace(form, coefficients=lambda *rows: _centred(coefficients(*rows)))


def _centred(values: Any) -> Any:
    return values - jnp.mean(values, axis=0, keepdims=True)


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (_centred, "reduce_sum along the records"),
        (lambda rows: jnp.sort(rows, axis=0), "sort along the records"),
        (lambda rows: jnp.cumsum(rows, axis=0), "cumsum along the records"),
        (lambda rows: rows @ (rows.T @ rows), "dot_general along the records"),
        (
            lambda rows: jax.lax.scan(lambda sum_, row: (sum_ + row, sum_), rows[0], rows)[1],
            "scan along the records",
        ),
        (
            lambda rows: jax.lax.cond(jnp.isnan(rows[0, 0]), jnp.sin, jnp.cos, rows),
            "cond: which branch follows private values",
        ),
    ],
)
def test_a_block_of_rows_that_are_mixed_is_told(step: Any, told: str) -> None:
    asked = Centred(loss=losses.logistic, at=AT, clip=0.4)
    assert "reduce_sum along the records" in found_in(asked)
    rows = jax.make_jaxpr(step)(jnp.zeros((UNITS, 2)))
    assert told in set(touches(rows, [True], UNITS))
    assert not set(touches(rows, [False], UNITS))


def test_loops_and_special_functions_over_private_values_are_known() -> None:
    """Where a contract test would not meet them: each new place says here why no record follows others there."""
    loops, special = set[str](), set[str]()
    root = Path(privopt.__file__).parent
    for room in ROOMS:
        for file in (root / room).rglob("*.py"):
            text, name = file.read_text(encoding="utf-8"), file.relative_to(root).as_posix()
            if "lax.while_loop" in text:
                loops.add(name)
            if re.search(
                r"jax\.scipy\.special\.(betainc|gammainc)|lax\.(betainc|igamma)|random\.gamma|gammainc",
                text,
            ):
                special.add(name)
    assert loops == set(LOOPS)
    assert special == set(SPECIAL)


def hostile_chunk(rng: np.random.Generator) -> UnitChunk:
    (setting,) = settings(
        D, ROW_BOUND, (), relations=["add-or-remove-one"], layouts=["dense users"], storages=["float64"]
    )
    chunk = [np.zeros((UNITS, RECORDS, D)), np.zeros((UNITS, RECORDS)), np.zeros((UNITS, RECORDS), bool)]
    for place in range(UNITS):
        unit = drawn_unit(rng, setting)
        count = len(unit.targets)
        chunk[0][place, :count], chunk[1][place, :count], chunk[2][place, :count] = *astuple(unit), True
    return UnitChunk(*chunk, np.ones(UNITS), np.arange(UNITS, dtype=np.int32))


def assert_each_alone(asked: MeanQuery) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        one, other = hostile_chunk(rng), hostile_chunk(rng)
        stays = rng.random(UNITS) < 0.5
        mixed = [np.array(part) for part in one]
        for part, drawn in zip(mixed, other, strict=True):
            part[~stays] = drawn[~stays]
        sides = (one, UnitChunk(*mixed))
        values, beside = (np.asarray(chunk_contributions(asked, side, public=PUBLIC)) for side in sides)
        np.testing.assert_array_equal(values[stays], beside[stays])


@pytest.mark.audit
@pytest.mark.parametrize(
    "name", [name for name, asked in MEANS.items() if not (called_on_host(asked) or is_of_codes(asked))]
)
def test_the_bits_of_a_contribution_stay_whatever_stands_beside_it(name: str) -> None:
    assert_each_alone(MEANS[name])
