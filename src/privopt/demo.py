"""`privopt demo`: private models of doctor visits on the RAND Health Insurance Experiment, beside non-private ones."""

import importlib.util
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from privopt.commands import screen
from privopt.commands.rand_records import MEANING, MOST_VISITS, RECORDS, SCHEMA, TRAINING, Records, load
from privopt.commands.screen import Mistake
from privopt.estimators.linear import LogisticRegression, PoissonRegressor
from privopt.ledger import accounting
from privopt.ledger.account import Account
from privopt.ledger.default_account import nothing_private
from privopt.ledger.events import sequence
from privopt.planning.plan import Plan
from privopt.public import Relation
from privopt.report.model import ModelSummary
from privopt.report.page import save_combined
from privopt.report.report import PrivacyReport
from privopt.report.words import number
from privopt.tables import TabularEncoder

EPSILONS = (0.5, 1.0, 2.0)
VISIT_EPSILON = 1.0

NOT_COVERED = (
    "The figures on held-out records are exact: they and the models without privacy are shown for comparison and lie "
    "outside the guarantee."
)
INTRODUCTION = (
    "Medical data about people: 20,190 person-years of the RAND Health Insurance Experiment (1974 to 1982). Private "
    "models predict whether somebody sees a doctor in a year, at three levels of privacy, and how often. A fifth of "
    "the records, chosen beforehand, was held out to measure them.",
    "What is protected is one person-year. These records name no persons, so somebody who took part for several years "
    "is protected in each of them, not in all together.",
    NOT_COVERED,
    "In the summary, AUC says how often a record with a visit is ranked above one without (0.5 is blind guessing), "
    "deviance is the mean deviance (lower is better), and explained says by which share it lies below that "
    "of a constant.",
)
ANY_QUESTION = "any doctor visit"
COUNT_QUESTION = "number of visits"
NO_PRIVACY = "without privacy (scikit-learn)"
NO_MODEL = "without a model (constant)"
FIGURES = ("accuracy", "AUC", "deviance", "explained")

Estimator = Any


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One private model of the demo.

    Attributes:
        question: what it predicts.
        estimator: the model.
        plan: what it costs and achieves, known before the data.
        counts: whether it predicts the number of visits; else whether there was any.
    """

    question: str
    estimator: Estimator
    plan: Plan
    counts: bool = False

    @property
    def title(self) -> str:
        """The heading of its report."""
        return f"{self.question[:1].upper()}{self.question[1:]}, epsilon {self.plan.budget.epsilon:g}"


def run(output: Path) -> None:
    """Plan, fit, compare, and write `report.html` and `report.json` to a folder.

    Raises:
        Mistake: statsmodels is missing, or the folder cannot be used.
    """
    started = time.perf_counter()
    _check_statsmodels()
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Mistake(f"--output {str(output)!r} cannot be a folder: {error.strerror}.") from None
    terminal = screen.console()
    fits = planned(TRAINING)
    account = opened(fits)
    announce(terminal, fits, account)
    train, held_out = load()
    fit_all(terminal, fits, account, train)
    rows = compared(fits, train, held_out)
    show_results(terminal, rows)
    page = save(output, fits, rows)
    screen.show_rows(
        terminal,
        f"Done in {time.perf_counter() - started:.0f} s",
        [
            (
                "spent",
                f"epsilon {account.budget.epsilon:.2f} at delta {number(account.budget.delta, 3)}, for all four models",
            ),
            ("report", f"{page}: open it in a browser"),
            ("data", f"{page.with_suffix('.json')}"),
        ],
    )


def planned(n: int) -> list[Fit]:
    """The models of the demo with their plans. No data.

    Args:
        n: public number of training records.
    """
    encoder = TabularEncoder(SCHEMA)
    public: dict[str, Any] = {"delta": 1.0 / float(n) ** 2, "bounds": encoder.numeric_range}
    models: list[Estimator] = [
        LogisticRegression(epsilon=epsilon, classes=(0, 1), **public) for epsilon in EPSILONS
    ]
    models.append(
        PoissonRegressor(
            epsilon=VISIT_EPSILON,
            target_bounds=(0, MOST_VISITS),
            row_bound=encoder.row_norm_bound_,
            **public,
        )
    )
    return [
        Fit(
            question=COUNT_QUESTION if model is models[-1] else ANY_QUESTION,
            estimator=model,
            plan=model.plan(n_features=encoder.n_features_out_, n=n),
            counts=model is models[-1],
        )
        for model in models
    ]


def opened(fits: Sequence[Fit]) -> Account:
    """An account that pays for all fits together, at their joint price, rounded up to a hundredth."""
    delta = fits[0].plan.budget.delta
    joint = accounting.epsilon(sequence(fit.plan.event for fit in fits), delta, Relation.REPLACE_ONE)
    return Account(math.ceil(100.0 * joint) / 100.0, delta, composition="gaussian")


def announce(terminal: Console, fits: Sequence[Fit], account: Account) -> None:
    """Print what will be done and what it will cost."""
    public, delta = fits[0].plan.public, account.budget.delta
    screen.show_rows(
        terminal,
        "Plan, made before any record is read",
        [
            ("data", f"RAND Health Insurance Experiment, {RECORDS:,} person-years"),
            ("protected", f"each of the {public.n:,} person-years to train on (replace-one)"),
            ("epsilon", "how much a model may tell about one of them; smaller is more private"),
            ("delta", f"{number(delta, 3)} = 1 / n^2, which declares that n is public"),
        ],
    )
    table = _table("predicts", "epsilon", "releases", "data passes", "predicted error")
    for fit in fits:
        plan = fit.plan
        excess = "" if plan.predicted_excess is None else f"+{number(plan.predicted_excess, 2)}"
        table.add_row(
            f"  {fit.question}", number(plan.epsilon), str(plan.releases), number(plan.passes, 3), excess
        )
    joint = f"{account.budget.epsilon:.2f}"
    table.add_row("  all together", joint, str(sum(fit.plan.releases for fit in fits)), style="bold")
    terminal.print(table)
    screen.show_rows(
        terminal,
        "",
        [
            ("error", "how far the training objective may end above its best value without privacy"),
            ("together", f"all four read the same records; an account of epsilon {joint} pays for them"),
        ],
    )


def _table(first: str, *numbers: str) -> Table:
    """A table without lines, its numbers to the right."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="cyan")
    table.add_column(f"  {first}", no_wrap=True)
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table


def fit_all(terminal: Console, fits: Sequence[Fit], account: Account, train: Records) -> None:
    """Fit every model, each with a bar of its releases; the account pays."""
    terminal.print("Fitting", style="bold")
    for fit in fits:
        title = f"  {fit.question}, epsilon {fit.plan.budget.epsilon:g}"
        fit.estimator.set_params(account=account)
        with screen.release_bar(terminal, f"{title:<31}", fit.plan.releases) as observer:
            private_targets = train.private_targets(counts=fit.counts)
            with nothing_private():  # the records are published
                fit.estimator.fit(train.private_features, private_targets, observer=observer)
    terminal.print()


def compared(fits: Sequence[Fit], train: Records, held_out: Records) -> list[dict[str, Any]]:
    """Every private model, its non-private counterpart and a constant, measured on the held-out records.

    Privacy:
        None: these figures are exact, and so are the counterparts. They are what a demonstration shows beside a private
        model, not what one would publish.
    """
    from sklearn import dummy, linear_model

    any_visit: list[Estimator] = [linear_model.LogisticRegression(max_iter=1000), dummy.DummyClassifier()]
    visits: list[Estimator] = [
        linear_model.PoissonRegressor(alpha=0.0, max_iter=1000),
        dummy.DummyRegressor(),
    ]
    rows: list[dict[str, Any]] = []
    for counts, references in ((False, any_visit), (True, visits)):
        question = COUNT_QUESTION if counts else ANY_QUESTION
        for fit in fits:
            if fit.counts == counts:
                scores = _scores(fit.estimator, held_out, counts=counts)
                rows.append(
                    {"predicts": question, "model": "private", "epsilon": fit.plan.budget.epsilon} | scores
                )
        for name, reference in zip((NO_PRIVACY, NO_MODEL), references, strict=True):
            reference.fit(train.private_features, train.private_targets(counts=counts))
            scores = _scores(reference, held_out, counts=counts)
            rows.append({"predicts": question, "model": name, "epsilon": math.inf} | scores)
    return rows


def _scores(model: Estimator, held_out: Records, *, counts: bool) -> dict[str, float | str]:
    """Figures on the held-out records, by name; empty where one does not apply."""
    from sklearn import metrics

    private_features, private_targets = held_out.private_features, held_out.private_targets(counts=counts)
    predicted = model.predict(private_features)
    if counts:
        return {
            "accuracy": "",
            "AUC": "",
            "deviance": _rounded(metrics.mean_poisson_deviance(private_targets, predicted)),
            "explained": _rounded(metrics.d2_tweedie_score(private_targets, predicted, power=1)),
        }
    probabilities = model.predict_proba(private_features)
    return {
        "accuracy": _rounded(metrics.accuracy_score(private_targets, predicted)),
        "AUC": _rounded(metrics.roc_auc_score(private_targets, probabilities[:, 1])),
        "deviance": _rounded(2.0 * metrics.log_loss(private_targets, probabilities)),
        "explained": _rounded(metrics.d2_log_loss_score(private_targets, probabilities)),
    }


def _rounded(figure: float) -> float:
    """Three decimals, all that so many records can tell; never a negative zero."""
    return round(float(figure), 3) + 0.0


def show_results(terminal: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the comparison."""
    terminal.print(f"On the {RECORDS - TRAINING:,} held-out records", style="bold")
    table = _table("", *FIGURES)
    question = ""
    for row in rows:
        if row["predicts"] != question:
            question = row["predicts"]
            table.add_row(f"  {question}", style="cyan")
        name = f"private, epsilon {row['epsilon']:g}" if row["model"] == "private" else row["model"]
        cells = [f"{row[key]:.3f}" if row[key] != "" else "" for key in FIGURES]
        table.add_row(f"    {name}", *cells)
    terminal.print(table)
    screen.show_rows(
        terminal,
        "",
        [
            ("AUC", "how often a record with a visit is ranked above one without: 0.5 is blind guessing"),
            (
                "deviance",
                "mean deviance, lower is better; explained: by which share it lies below that of a constant",
            ),
            ("mind", NOT_COVERED),
        ],
    )


def save(output: Path, fits: Sequence[Fit], rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write one page and one JSON file for all models; gives the page's path."""
    reports = [_report(fit, rows) for fit in fits]
    title = "privopt demo: doctor visits, predicted privately"
    save_combined(output / "report.json", reports, title, rows)
    shown = [
        dict(row) | {key: f"{row[key]:.3f}" if row[key] != "" else "—" for key in FIGURES} for row in rows
    ]
    return save_combined(output / "report.html", reports, title, shown, introduction=INTRODUCTION)


def _report(fit: Fit, rows: Sequence[Mapping[str, Any]]) -> PrivacyReport:
    """The report of one model, in the words of the table, with its figures on held-out records."""
    epsilon = fit.plan.budget.epsilon
    row = next(r for r in rows if r["predicts"] == fit.question and r["epsilon"] == epsilon)
    figures = {
        f"{key} on held-out records": row[key] for key in ("accuracy", "AUC", "deviance") if row[key] != ""
    }
    report: PrivacyReport = fit.estimator.privacy_
    encoder = TabularEncoder(SCHEMA)
    names = [MEANING.get(str(name), str(name)) for name in encoder.get_feature_names_out()]
    model = ModelSummary.of(
        type(fit.estimator).__name__,
        fit.estimator.coef_,
        features=names,
        intercept=fit.estimator.intercept_,
        classes=None if fit.counts else ("no visit", "any visit"),
        meaning=fit.estimator._meaning(encoder.describe_units()),
    )
    return replace(
        report, title=fit.title, model=model, metrics=figures, notices=(*report.notices, NOT_COVERED)
    )


def _check_statsmodels() -> None:
    """Refuse before anything else is done."""
    if importlib.util.find_spec("statsmodels") is None:
        raise Mistake(
            "the demo's records ship with statsmodels, which is not installed: pip install 'privopt[demo]'."
        )
