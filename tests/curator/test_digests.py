"""Digests of arguments are those of another process, and differ where anything does."""

import functools
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from privopt import LogisticRegression
from privopt.curator.journal import digest
from privopt.problems.losses import Huber
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.public import Relation

VALUES = """
import numpy as np
from privopt.curator.journal import digest
from privopt.problems.losses import Huber
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
print(digest((Problem(Huber(0.5), Ridge(0.1)), {"a", "b", "c"}, {"x": np.arange(3.0)}, "text", None, (-1, 1.0))))
"""


def loss(strength: float) -> Callable[..., Any]:
    def value(params: Any, features: Any, target: Any) -> Any:
        return strength * (params @ features - target) ** 2

    return value


def other_loss(strength: float) -> Callable[..., Any]:
    def value(params: Any, features: Any, target: Any) -> Any:
        return strength * (params @ features - target) ** 4

    return value


@dataclass
class Holder:
    held: Any


def test_another_process_finds_the_same() -> None:
    env = {**os.environ, "PYTHONHASHSEED": "1"}
    told = subprocess.run(
        [sys.executable, "-c", VALUES], capture_output=True, text=True, check=True, env=env
    ).stdout
    problem = Problem(Huber(0.5), Ridge(0.1))
    assert told.strip() == digest((problem, {"a", "b", "c"}, {"x": np.arange(3.0)}, "text", None, (-1, 1.0)))


def test_whatever_differs_shows() -> None:
    problem = Problem(Huber(0.5), Ridge(0.1))
    values = [
        problem,
        replace(problem, loss=Huber(0.25)),
        replace(problem, regulariser=Ridge(0.2)),
        1,
        1.0,
        True,
        "1",
        b"1",
        None,
        (1, 2),
        [1, 2],
        (1, (2,)),
        ((1, 2),),
        {"a": 1},
        {"b": 1},
        {1, 2},
        range(2),
        np.arange(3),
        np.arange(3.0),
        np.arange(3.0)[:, None],
        np.asarray(["a", 1], object),
        jnp.arange(3.0),
        loss(1.0),
        loss(2.0),
        other_loss(1.0),
        jax.jit(loss(1.0)),
        functools.partial(loss, 1.0),
        functools.partial(loss, 2.0),
        problem.regulariser.gradient,
        Relation.REPLACE_ONE,
        Relation.ADD_OR_REMOVE_ONE,
        Relation,
        Path("a"),
        LogisticRegression(bounds=(-1, 1)),
        LogisticRegression(bounds=(-1, 2)),
        object(),
    ]
    digests = [digest(value) for value in values]
    assert len(set(digests)) == len(values)
    assert digest(loss(1.0)) == digest(loss(1.0))


@pytest.mark.parametrize("make", [list[Any], lambda: Holder(None)])
def test_what_holds_itself_has_one_too(make: Callable[[], Any]) -> None:
    value = make()
    if isinstance(value, Holder):
        value.held = value
    else:
        value.append(value)
    assert digest(value) == digest(value)


def test_slots_count_and_a_module_by_its_name_alone():
    class Clip:
        __slots__ = ("at",)

        def __init__(self, at):
            self.at = at

    assert digest(Clip(1.0)) == digest(Clip(1.0)) != digest(Clip(2.0))

    def slope(by):  # what `jax.grad` gives captures modules of jax
        return jax.grad(lambda x: by * x)

    found = slope(1.0)
    before = digest(found)
    found(1.0)
    assert digest(found) == before == digest(slope(1.0)) != digest(slope(2.0))
    assert digest(math) != digest(jax)
