"""`privopt demo`: private models of doctor visits on the RAND Health Insurance Experiment, beside non-private ones.

The records (20 190 person-years) ship with statsmodels. Everything said about them here is public: their number and
the columns' ranges come from the documentation, not from the rows. One record is one year of one person; this copy
names no persons, so what is protected is a person-year.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from privopt.commands import screen
from privopt.commands.mistakes import Mistake
from privopt.estimators import LogisticRegression, PoissonRegressor
from privopt.ledger import accounting
from privopt.ledger.account import Account
from privopt.ledger.events import sequence
from privopt.plan import Plan
from privopt.public import Relation
from privopt.report.model import ModelSummary
from privopt.report.page import save_combined
from privopt.report.report import PrivacyReport
from privopt.report.words import number
from privopt.tables import Schema, TabularEncoder

RECORDS = 20_190  # person-years, from the data's documentation
TRAINING = 16_152  # four fifths
SPLIT_SEED = 20  # public randomness: which records are held out
EPSILONS = (0.5, 1.0, 2.0)
VISIT_EPSILON = 1.0

# From the documentation: coinsurance is 0 to 100 per cent; the incentive payment and the maximum expenditure were at most
# a few thousand dollars; the index of chronic diseases counts up to 60; visits are capped at 80 a year.
SCHEMA: dict[str, Any] = {
    "target": "mdvis",
    "columns": {
        "mdvis": {"kind": "num", "low": 0, "high": 80},
        "lncoins": {"kind": "num", "low": 0, "high": 4.62},
        "idp": {"kind": "flag"},
        "lpi": {"kind": "num", "low": 0, "high": 8},
        "fmde": {"kind": "num", "low": 0, "high": 9},
        "physlm": {"kind": "num", "low": 0, "high": 1},
        "disea": {"kind": "num", "low": 0, "high": 60},
        "hlthg": {"kind": "flag"},
        "hlthf": {"kind": "flag"},
        "hlthp": {"kind": "flag"},
    },
}
MEANING = {
    "lncoins": "coinsurance (log)",
    "idp": "individual deductible",
    "lpi": "incentive payment (log)",
    "fmde": "maximum expenditure (log)",
    "physlm": "physical limitation",
    "disea": "chronic diseases",
    "hlthg": "health: good",
    "hlthf": "health: fair",
    "hlthp": "health: poor",
}
NOT_COVERED = (
    "The figures on held-out records are exact: they, and the non-private models, are shown for comparison and lie outside "
    "the guarantee."
)
INTRODUCTION = (
    "Medical data about people: 20,190 person-years of the RAND Health Insurance Experiment (1974 to 1982). Private models "
    "predict whether somebody sees a doctor in a year, at three levels of privacy, and how often. A fifth of the records, "
    "chosen beforehand, was held out to measure them.",
    NOT_COVERED,
)

Estimator = Any


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One private model of the demo.

    Attributes:
        title: what it is called.
        estimator: the model, unfitted at first.
        plan: what it will cost and achieve, known before the data.
        counts: whether it predicts the number of visits; else whether there was any.
    """

    title: str
    estimator: Estimator
    plan: Plan
    counts: bool = False


@dataclass(frozen=True, kw_only=True)
class Records:
    """Encoded person-years and their visits."""

    private_features: NDArray[np.float32]
    private_visits: NDArray[np.float64]

    def targets(self, *, counts: bool) -> NDArray[np.float64]:
        """Visits, or 1 for any visit and 0 for none."""
        return self.private_visits if counts else (self.private_visits > 0).astype(np.float64)


def run(output: Path) -> None:
    """Plan, fit, compare, and write `report.html` and `report.json` to a folder.

    Raises:
        Mistake: statsmodels is missing, or the folder cannot be used.
    """
    _check_statsmodels()
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Mistake(f"--output {str(output)!r} cannot be a folder: {error.strerror}.") from None
    terminal = screen.console()
    fits, joint = planned(TRAINING)
    announce(terminal, fits, joint)
    train, test = load()
    reports, table = fit_all(terminal, fits, joint, train, test)
    show_results(terminal, table)
    page = save(output, reports, table)
    _close(terminal, fits, joint, page)


def planned(n: int) -> tuple[list[Fit], float]:
    """The models of the demo with their plans, and the epsilon of all together. No data.

    Args:
        n: public number of training records.
    """
    delta = 1.0 / float(n) ** 2
    encoder = TabularEncoder(SCHEMA)
    public: dict[str, Any] = {"delta": delta, "bounds": (-1.0, 1.0), "row_bound": encoder.row_norm_bound_}
    models = [
        (f"any visit, epsilon {epsilon:g}", LogisticRegression(epsilon=epsilon, classes=(0, 1), **public), False)
        for epsilon in EPSILONS
    ]
    visits = SCHEMA["columns"]["mdvis"]
    poisson = PoissonRegressor(epsilon=VISIT_EPSILON, target_bounds=(visits["low"], visits["high"]), **public)
    models.append((f"number of visits, epsilon {VISIT_EPSILON:g}", poisson, True))
    fits = [
        Fit(
            title=title,
            estimator=estimator,
            plan=estimator.plan(n_features=encoder.n_features_out_, n=n),
            counts=counts,
        )
        for title, estimator, counts in models
    ]
    joint = accounting.epsilon(sequence(fit.plan.event for fit in fits), delta, Relation.REPLACE_ONE)
    return fits, joint


def announce(terminal: Console, fits: Sequence[Fit], joint: float) -> None:
    """Print what will be done and what it will cost."""
    first = fits[0].plan
    screen.show_rows(
        terminal,
        "Plan, made before any record is read",
        [
            ("data", f"RAND Health Insurance Experiment: {RECORDS:,} person-years, {first.public.n:,} to train"),
            ("protected", f"one person-year among {first.public.n:,}; replace-one: its data may be replaced by any other"),
            ("delta", f"{number(first.budget.delta, 3)} (1 / n^2, which declares that n is public)"),
        ],
    )
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("  model")
    for heading in ("price", "releases", "passes", "predicted error", "time"):
        table.add_column(heading, justify="right")
    for fit in fits:
        plan = fit.plan
        excess = "" if plan.predicted_excess is None else f"+{number(plan.predicted_excess, 2)}"
        price = f"{number(plan.epsilon)}"
        row = (price, f"{plan.releases}", number(plan.passes, 3), excess, f"{number(plan.seconds, 2)} s")
        table.add_row(f"  {fit.title}", *row)
    table.add_row("  all together", f"{number(joint)}", f"{sum(fit.plan.releases for fit in fits)}")
    terminal.print(table)
    terminal.print()
    terminal.print(
        "  Predicted error: how far the training objective may end above its best value\n"
        "  without privacy, an upper estimate. All four models read the same records, so\n"
        f"  whoever sees them all faces epsilon {number(joint)}. An account pays for that.\n"
    )


def load() -> tuple[Records, Records]:
    """The training and the held-out records. This is the first look at the data."""
    from statsmodels.datasets import randhie

    private_table = randhie.load_pandas().data
    private_features = TabularEncoder(SCHEMA).fit(private_table).transform(private_table)
    private_visits = private_table["mdvis"].to_numpy(dtype=np.float64)
    order = np.random.default_rng(SPLIT_SEED).permutation(RECORDS)
    return tuple(
        Records(private_features=private_features[part], private_visits=private_visits[part])
        for part in (order[:TRAINING], order[TRAINING:])
    )
