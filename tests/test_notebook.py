"""What a result, a plan and a report look like where they are the last line of a cell."""

from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.planning.plan import Finding
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.result import Result
from privopt.solve import minimize, plan
from privopt.solvers.gradient_descent import GradientDescent

BUDGET = Budget(1.0, 1e-6)
HOSTILE = "<script>alert('x')</script> & \"more\""


class Tags(HTMLParser):
    """Every tag with its attributes, that all of them are closed, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.open.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def result() -> Result:
    units = Units.from_arrays(np.eye(60), np.ones(60), row_bound=1.0)
    problem = Problem(losses.logistic, Ridge(0.1))
    return minimize(problem, units, budget=BUDGET, solver=GradientDescent(steps=300), random_state=0)


def cards(result: Result) -> dict[str, Any]:
    assert result.plan is not None
    problem = Problem(losses.logistic, Ridge(0.1))
    return {
        "result": result,
        "plan": result.plan,
        "plans": plan(problem, n=2000, d=3, epsilon=1.0, delta=1e-6),
        "report": result.report,
    }


def test_a_result_of_many_releases_prints_in_ten_short_lines(result: Result) -> None:
    many = result._replace(
        params={f"layer {index}": jnp.zeros((40, 30)) for index in range(50)},
        findings={f"finding_{index}": Finding(np.ones(1000), "what it is") for index in range(30)},
    )
    for one in (result, many):
        lines = repr(one).splitlines()
        assert len(lines) <= 10
        assert max(map(len, lines)) <= 120
    assert "params: 60 released numbers" in repr(result)
    assert "300 releases; the noise came from a seed: NOT PRIVATE" in repr(result)
    assert "gradient-descent: epsilon 1" in repr(result)
    assert "40 x 30, 40 x 30, 40 x 30, 40 x 30 and 46 more arrays" in repr(many)
    assert repr(result.transcript) == "Transcript(300 releases, replace-one, seeded: not private)"


@pytest.mark.at_once("report")
@pytest.mark.parametrize("name", ["result", "plan", "plans", "report"])
def test_a_notebook_shows_a_small_table_that_needs_nothing_from_elsewhere(result: Result, name: str) -> None:
    page = cards(result)[name]._repr_html_()
    found = Tags(page)
    assert len(page) < 30_000
    assert not found.open
    assert set(found.tags) <= {"div", "p", "b", "table", "tbody", "tr", "th", "td"}
    assert found.attributes <= {"style", "scope"}
    assert "url(" not in page
    assert "epsilon 1" in found.text
    if name in ("result", "report"):
        assert "not private" in found.text.lower()  # it was seeded


def test_every_word_in_a_notebook_is_escaped(result: Result) -> None:
    assert result.plan is not None
    plans = plan(losses.logistic, n=2000, d=3, epsilon=1.0, delta=1e-6)
    hostile = replace(result.plan, solver=HOSTILE, notices=(HOSTILE,), reason=HOSTILE)
    pages = [
        result._replace(plan=hostile, findings={HOSTILE: Finding(1.0, HOSTILE)}),
        hostile,
        replace(plans, plans=(hostile, hostile), refused=((HOSTILE, HOSTILE),)),
        replace(result.report, title=HOSTILE, notices=(HOSTILE,)),
    ]
    for page in pages:
        shown = page._repr_html_()
        assert "<script" not in shown
        assert "alert('x')" in Tags(shown).text
