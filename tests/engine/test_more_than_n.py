"""Where the number of units is private, n is given and never exceeded: one unit more is refused by every engine."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privopt.data.record_source import ArrayRecords, Description
from privopt.engine.choose import engine_of
from privopt.engine.placement import Placement
from privopt.errors import ArgumentError

N = 40
RELATIONS = ("replace-one", "add-or-remove-one")


def source_of(units: int, *, by_user: bool) -> ArrayRecords:
    rng = np.random.default_rng(0)
    keys = np.arange(units) if by_user else None
    return ArrayRecords(rng.normal(size=(units, 3)), rng.integers(0, 2, units), keys)


def about(relation: str, n: int | None = N) -> Description:
    return Description(row_bound=1.0, classes=(0, 1), relation=relation, n=n)


@pytest.mark.parametrize("engine", ["memory", "stream"])
@pytest.mark.parametrize("by_user", [False, True])
@pytest.mark.parametrize("relation", RELATIONS)
def test_one_unit_more_than_n_is_refused_and_one_fewer_is_absent(
    relation: str, by_user: bool, engine: Any, tmp_path: Path
) -> None:
    placement = Placement(engine=engine, spool=tmp_path if engine == "stream" else None)
    for units in (N - 1, N):
        made = engine_of(source_of(units, by_user=by_user), about(relation), placement)
        assert (made.public.n, made.private_count, len(made.presence())) == (N, units, N)
        made.close()
    with pytest.raises(ArgumentError, match=f"n = {N}") as refused:
        engine_of(source_of(N + 1, by_user=by_user), about(relation), placement)
    numbers = set(re.findall(r"\d+", str(refused.value)))
    is_public = relation == "replace-one" and not by_user  # then the sentence says what n would be right
    assert numbers == ({str(N), str(N + 1)} if is_public else {str(N)})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("relation", "by_user"), [(RELATIONS[1], False), *((each, True) for each in RELATIONS)]
)
def test_a_private_number_is_not_counted(relation: str, by_user: bool) -> None:
    with pytest.raises(ValueError, match="n is missing"):
        engine_of(source_of(N, by_user=by_user), about(relation, None), Placement(engine="memory"))


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_cluster_refuses_one_record_more_before_it_has_workers(relation: str) -> None:
    layout = pytest.importorskip("privopt.engine.on_ray.layout")
    assert layout.lay_out(source_of(N - 1, by_user=False), about(relation), None).public.n == N
    with pytest.raises(ArgumentError, match=f"n = {N} was given with|more rows than n = {N}"):
        layout.lay_out(source_of(N + 1, by_user=False), about(relation), None)
