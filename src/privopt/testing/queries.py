"""The contract of a query: no unit moves it by more than its sensitivity, whatever stands in the unit's records."""

import math
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

import numpy as np

from privopt.curator.audit import Audit
from privopt.curator.base import Curator
from privopt.errors import ArgumentError
from privopt.later import Array, jax, jnp
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import in_float64
from privopt.public import Relation
from privopt.queries.base import ArgminQuery, ObjectiveQuery, PassQuery, Query, RecordsQuery, RecordSum
from privopt.queries.safeguards import clips_by_itself, lengths_of
from privopt.queries.values import called_on_host
from privopt.testing.toy_data import (
    ContractViolation,
    Layout,
    Pair,
    Rule,
    Setting,
    Storage,
    hostile_numbers,
    hostile_pair,
    hostile_targets,
    ordinary_pair,
    settings,
)

# A query, or what makes one from a curator that holds the points or the mean that it is asked of.
Asked: TypeAlias = Query | Callable[[Curator], Query]
OF_RECORDS = (ArgminQuery, ObjectiveQuery, PassQuery, RecordsQuery)
SLACK = 1.0 + 1e-12
_GROWTH = (
    5.0  # a ratio that grows by this with the size of a target, or with fewer units, is bounded by neither
)


def check_query(
    query: Asked,
    *,
    columns: int,
    row_bound: float = 1.0,
    levels: Sequence[int] = (),
    relations: Sequence[Relation | str] = ("replace-one", "add-or-remove-one"),
    layouts: Sequence[Layout] = ("dense", "csr", "dense users"),
    storages: Sequence[Storage] = ("float32", "float64"),
    pairs: int = 6,
    seed: int = 0,
) -> float:
    """Hold a query to its promises on hostile neighbours, stored in every way that it can be asked of.

    Args:
        query: what is asked; or a function of a curator that returns it, for a statistic of what the curator holds
            (`lambda curator: Mine(held=curator.hold(...))`).
        columns: features of a record.
        row_bound: rows are clipped to this l2 norm.
        levels: the cells of each column of a coded table, for a query of one; its rows are codes, and what is none.
        relations: which data sets are neighbours.
        layouts: how records are laid out. Of a query of records (`queries.base`) those of
            users are left out; of a pass, add-or-remove-one as well.
        storages: of the rows.
        pairs: how many hostile pairs in each way.
        seed: of the first pair; the next ones follow.
    Returns:
        The largest distance moved over the stated sensitivity: at most 1, and near 1 where the bound is tight.
    Raises:
        ContractViolation: a unit moves it too far (and why, as far as that can be told: a clip that was forgotten, a
            mean over a private count, a sensitivity that is too small), a NaN survives, a value has another shape, or
            data make it raise or warn.
        ArgumentError: nothing was compared: the query cannot be asked of such neighbours or layouts.
    Privacy:
        The search finds mistakes; it proves nothing. A sensitivity needs an argument.
    """
    largest, compared = 0.0, 0
    levels = tuple(levels)
    whole = f"check_query(query, columns={columns}, row_bound={row_bound}, levels={levels}, pairs={pairs}, seed={seed})"
    with in_float64(), quietly(query, whole):
        for setting in settings(
            columns, row_bound, levels, relations=relations, layouts=layouts, storages=storages
        ):
            for name, pair, number in neighbours(setting, seed, pairs):
                again = (
                    f"check_query(query, columns={columns}, row_bound={row_bound}, levels={levels}, "
                    f"{setting.arguments}, pairs={0 if number is None else 1}, seed={number or 0})"
                )
                found = _moved(query, pair(), setting, again)
                if found is None:
                    break
                asked, ratio = found
                compared += 1
                largest = max(largest, ratio)
                if not ratio <= SLACK:
                    rule, what = fault_of(query, ratio, setting)
                    raise ContractViolation(rule, asked, what, case=f"{setting}, {name}", repeat=again)
        if not compared:
            raise ArgumentError(
                f"nothing was checked: the query cannot be asked under relations={list(relations)!r} with "
                f"layouts={list(layouts)!r}, storages={list(storages)!r}. Leave them out, or give others."
            )
        if not callable(query):
            require_own_clip(query, columns=columns, row_bound=row_bound, levels=levels, seed=seed)
    return largest


def neighbours(
    setting: Setting, seed: int, pairs: int
) -> Iterator[tuple[str, Callable[[], Pair], int | None]]:
    """The pairs that a query is tried on: what they are, how to make them, the seed of a hostile one."""
    for name, present in (("ordinary records", setting.units), ("a unit alone", 1)):
        if present == 1 and setting.relation is Relation.REPLACE_ONE:
            continue
        for number in range(3):
            made = partial(ordinary_pair, number, setting, target_scale=1.0, present=present)
            yield f"{name}, pair {number}", made, None
    for number in range(seed, seed + pairs):
        yield f"hostile pair of seed {number}", partial(hostile_pair, number, setting), number


def _moved(query: Asked, pair: Pair, setting: Setting, again: str) -> tuple[Query, float] | None:
    """The query that was asked and how far it moved; None where it cannot be asked of such units."""
    audit = _audit(pair, setting)
    asked = query(audit) if callable(query) else query
    if setting.of_users and isinstance(asked, OF_RECORDS):
        return None
    if setting.relation is Relation.ADD_OR_REMOVE_ONE and isinstance(asked, PassQuery):
        return None

    def violated(rule: Rule, what: str) -> ContractViolation:
        return ContractViolation(rule, asked, what, case=str(setting), repeat=again)

    try:
        with np.errstate(all="raise"):  # as a user may have set it
            return asked, audit.compare(asked)
    except Exception as error:
        if "states the sensitivity" in str(error):
            raise violated(Rule.SENSITIVITY, f"the curator refuses it: {error}") from error
        if "states the shape" in str(error):
            raise violated(Rule.SHAPE, str(error)) from error
        raise violated(Rule.QUIET, f"a record makes it raise a {type(error).__name__}") from error


def _audit(pair: Pair, setting: Setting) -> Audit:
    return Audit(pair.left, pair.right, Unlimited(setting.relation), noise=NoiseSource(0), place=pair.place)


def fault_of(query: Asked, ratio: float, setting: Setting) -> tuple[Rule, str]:
    """Which mistake lets a unit move a query too far, told from ordinary records; and the same in a sentence.

    A distance that grows with a target is not clipped; one that grows as units become fewer is divided by their private
    number; one that does neither is bounded, by more than is stated.
    """
    many = setting.units

    def largest(target_scale: float, present: int) -> float:
        ratios: list[float] = []
        for number in range(4):
            pair = ordinary_pair(number, setting, target_scale=target_scale, present=present)
            audit = _audit(pair, setting)
            ratios.append(audit.compare(query(audit) if callable(query) else query))
        return max(ratios)

    with np.errstate(all="ignore"):
        plain, tall = largest(1.0, many), largest(1e6, many)
        alone = largest(1.0, 1) if setting.relation is Relation.ADD_OR_REMOVE_ONE else plain
    if math.isinf(plain) or math.isinf(tall):
        return Rule.NOT_FINITE, "a contribution that is not finite reaches the value"
    if tall > max(1.0, _GROWTH * plain):
        return Rule.CLIP, (
            f"one unit moves the value by {ratio:.4g} times its sensitivity, and by more the larger its target is"
        )
    if alone > max(1.0, 2.0 * plain):
        return Rule.COUNT, (
            f"one unit moves the value by {alone:.4g} times its sensitivity where it is alone, by {plain:.4g} times "
            f"among n = {many}: divide by the public n, not by how many are there"
        )
    if not math.isfinite(ratio) and max(plain, tall) <= SLACK:
        return Rule.NOT_FINITE, "a contribution that is not finite reaches the value"
    return Rule.SENSITIVITY, f"one unit moves the value by {max(ratio, plain):.4g} times its sensitivity"


def require_own_clip(
    query: Query, *, columns: int, row_bound: float, levels: tuple[int, ...] = (), seed: int = 0
) -> None:
    """Hold the `clip_unit` of a mean's own class to its radius, before the engine does.

    Raises:
        ContractViolation: a contribution of a hostile record is longer than `radius` after the clip, or not a number.
    """
    if not isinstance(query, RecordSum) or clips_by_itself(type(query)) or levels or called_on_host(query):
        return
    rng = np.random.default_rng(seed)
    features = hostile_numbers(rng, (64, columns))
    peaks = np.max(np.abs(np.nan_to_num(features, posinf=1.0, neginf=1.0)), axis=1, keepdims=True)
    features = np.where(np.isfinite(features), features, 0.0) / np.where(peaks > 0, peaks, 1.0)
    features *= row_bound / np.sqrt(columns)
    targets = hostile_targets(rng, 32)
    targets = np.where(np.isfinite(targets), targets, 0.0)
    targets = np.concatenate([targets, rng.choice([-1.0, 1.0], 32) * 10.0 ** rng.uniform(-3, 9, 32)])
    contributions = jax.jit(partial(_clipped, query))(jnp.asarray(features), jnp.asarray(targets))
    with np.errstate(all="ignore"):
        lengths = np.asarray(lengths_of(query, contributions))
        radius = float(query.radius())
    place = int(np.argmax(np.where(np.isnan(lengths), np.inf, lengths)))
    if np.isnan(lengths[place]):
        rule, what = Rule.NOT_FINITE, "a record's contribution is not a number after its `clip_unit`"
    elif lengths[place] > radius * (1.0 + 1e-6):
        rule = Rule.CLIP
        what = f"after its `clip_unit` a contribution has the length {lengths[place]:.4g}, and `radius` is {radius:.4g}"
    else:
        return
    raise ContractViolation(
        rule,
        query,
        what + " (the engine scales it to the radius, so the value is less exact than it might be)",
        case=f"record {place} of 64 hostile ones of seed {seed}",
        repeat=f"check_query(query, columns={columns}, row_bound={row_bound}, pairs=0, seed={seed})",
    )


def _clipped(query: RecordSum, features: Array, targets: Array) -> Array:
    def of_record(private_features: Array, private_target: Array) -> Array:
        private_vector = query.record_contribution(private_features, private_target)
        return query.clip_unit(query.without_bad(private_vector))

    return jax.vmap(of_record)(features, targets)


@contextmanager
def quietly(subject: object, again: str) -> Generator[None]:
    """A place in which a warning is a violation; `again` is the call that repeats it.

    Raises:
        ContractViolation: something warned.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    except Warning as warned:
        raise ContractViolation(
            Rule.QUIET, subject, f"it warns: {type(warned).__name__}", case="hostile records", repeat=again
        ) from warned
