"""A small private neural network, written by hand and fitted by `privopt.minimize`, on medical records.

Run it by `make network`. It predicts whether somebody sees a doctor in a year, from the person-years of `privopt demo`.
Everything but `network` and the settings below it is loading, printing and comparing.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from rich.table import Table
from scipy import optimize
from sklearn import metrics

from privopt import Budget, LogisticRegression, Units, double_precision, minimize, plan
from privopt.commands import screen
from privopt.commands.rand_records import TRAINING, load
from privopt.report.page import save_combined
from privopt.report.report import PrivacyReport
from privopt.solvers.adaptive_gradient_descent import AdaptiveGradientDescent

FEATURES, HIDDEN = 10, 8  # nine columns and a constant; tanh units
EPSILONS = (1.0, 4.0)
# All of the following are public choices. Clip, step size and window were compared on made-up records of the same
# number and shape, never on these: `make network ARGS=--made-up` prints the comparison.
CLIP = 1.0  # longest gradient of one record; half and twice as long end within 0.01 in AUC
STEP_SIZE = 1.0  # from half to four times as long: within 0.01
# Steps over which the tracked norm of the gradient may change by a factor of e. A window of 300 takes more than twice
# the passes over the data: also within 0.01.
WINDOW = 100
MOST_STEPS = 1000  # not reached: with this window the budget is spent after some 250 to 500 steps
DECLARED = ("Ranges of the columns, from the documentation.", "The number of records, by delta = 1 / n^2.")
REFERENCE_STEPS = 150  # of the fit without privacy (L-BFGS)


def network(params: dict[str, Any], features: jax.Array, target: jax.Array) -> jax.Array:
    """The logistic loss of one record; its target is -1 or 1."""
    return jnp.logaddexp(0.0, -target * score(params, features))


def score(params: dict[str, Any], features: jax.Array) -> jax.Array:
    """The log-odds of a visit, by one layer of hidden units."""
    return params["outer"] @ jnp.tanh(features @ params["inner"])


def start() -> dict[str, Any]:
    """Random hidden units, from public randomness, and no say for any of them yet."""
    inner = np.random.default_rng(0).normal(size=(FEATURES, HIDDEN)) / np.sqrt(FEATURES)
    return {"inner": inner, "outer": np.zeros(HIDDEN)}


def run(
    output: Path,
    *,
    epsilons: tuple[float, ...] = EPSILONS,
    n: int = TRAINING,
    most_steps: int = MOST_STEPS,
    reference_steps: int = REFERENCE_STEPS,
) -> Path:
    """Plan, fit, compare, and write `report.html`; gives its path.

    Args:
        output: folder of the report.
        epsilons: one private network each.
        n: how many of the training records are used.
        most_steps: of a private network.
        reference_steps: of the network without privacy.
    """
    started, terminal, delta = time.perf_counter(), screen.console(), 1.0 / n**2
    solver = AdaptiveGradientDescent(clip=CLIP, step_size=STEP_SIZE, window=WINDOW, most_steps=most_steps)
    longest_row = float(np.sqrt(FEATURES))  # every feature lies between -1 and 1
    terminal.print("Plans, made before any record is read", style="bold")
    for epsilon in epsilons:
        plans = plan(
            network,
            n=n,
            d=FEATURES,
            epsilon=epsilon,
            delta=delta,
            row_bound=longest_row,
            solver=solver,
            start=start(),
        )
        terminal.print(str(plans), markup=False, soft_wrap=True)
    terminal.print()

    train, held_out = load()
    private_rows, private_signs = _with_constant(train.private_features[:n]), _signs(train)[:n]
    units = Units.from_arrays(private_rows, private_signs, row_bound=longest_row)
    results: dict[float, Any] = {}
    for epsilon in epsilons:
        title = f"  network, epsilon {epsilon:g}"
        with screen.release_bar(terminal, title, most_steps) as observer:
            results[epsilon] = minimize(
                network,
                units,
                budget=Budget(epsilon, delta),
                solver=solver,
                start=start(),
                observer=observer,
            )
    terminal.print()

    # What follows has no protection: a demonstration shows it beside a private model, one would not publish it.
    rows = [
        ("network", epsilon, _log_odds(result.params, held_out.private_features))
        for epsilon, result in results.items()
    ]
    for epsilon in epsilons:
        logistic = LogisticRegression(epsilon=epsilon, delta=delta, classes=(-1, 1), bounds=(-1, 1))
        logistic.fit(train.private_features[:n], private_signs)
        rows.append(("logistic regression", epsilon, logistic.decision_function(held_out.private_features)))
    exact = _without_privacy(private_rows, private_signs, reference_steps)
    rows.append(("network", np.inf, _log_odds(exact, held_out.private_features)))
    compared = [_figures(*row, _signs(held_out)) for row in rows]
    _show(terminal, compared)
    reports = [
        PrivacyReport.of(
            result, title=f"Network for any doctor visit, epsilon {epsilon:g}", declared=DECLARED
        )
        for epsilon, result in results.items()
    ]
    output.mkdir(parents=True, exist_ok=True)
    page = save_combined(output / "report.html", reports, "A private network: any doctor visit", compared)
    terminal.print(f"Done in {time.perf_counter() - started:.0f} s. Open {page} in a browser.", markup=False)
    return page


def _with_constant(private_features: Any) -> Any:
    """The features and a constant 1, so that hidden units have a threshold."""
    return np.hstack([private_features, np.ones((len(private_features), 1), np.float32)])


def _signs(records: Any) -> Any:
    """1 for any visit, -1 for none."""
    return 2.0 * records.private_targets(counts=False) - 1.0


def _log_odds(params: dict[str, Any], private_features: Any) -> Any:
    with double_precision():
        rows = jnp.asarray(_with_constant(private_features), jnp.float64)
        return np.asarray(jax.vmap(score, (None, 0))(jax.tree.map(jnp.asarray, params), rows))


def _without_privacy(private_rows: Any, private_signs: Any, steps: int) -> dict[str, Any]:
    """The same network from the same start, by L-BFGS."""
    with double_precision():
        rows, signs = jnp.asarray(private_rows, jnp.float64), jnp.asarray(private_signs, jnp.float64)
        first, unravel = jax.flatten_util.ravel_pytree(jax.tree.map(jnp.asarray, start()))

        @jax.jit
        def mean_loss(flat: jax.Array) -> jax.Array:
            return jnp.mean(jax.vmap(network, (None, 0, 0))(unravel(flat), rows, signs))

        found = optimize.minimize(
            jax.value_and_grad(mean_loss), first, jac=True, method="L-BFGS-B", options={"maxiter": steps}
        )
        return unravel(jnp.asarray(found.x))


def _figures(name: str, epsilon: float, log_odds: Any, signs: Any) -> dict[str, Any]:
    return {
        "model": name if np.isfinite(epsilon) else f"{name} without privacy",
        "epsilon": epsilon,
        "accuracy": f"{metrics.accuracy_score(signs, np.where(log_odds > 0, 1.0, -1.0)):.3f}",
        "AUC": f"{metrics.roc_auc_score(signs, log_odds):.3f}",
    }


def _show(terminal: Any, compared: list[dict[str, Any]]) -> None:
    table = Table(title="On held-out records", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in compared[0]:
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for row in compared:
        table.add_row(*(str(cell) for cell in row.values()))
    terminal.print(table)
    terminal.print()


def compare_settings(*, n: int = TRAINING, most_steps: int = MOST_STEPS) -> list[tuple[Any, ...]]:
    """Compare clips, step sizes and windows, one at a time, on made-up records at epsilon 1.

    Returns:
        (clip, step size, window, steps taken, AUC on further made-up records) of each.
    """
    terminal, rows = screen.console(), list[tuple[Any, ...]]()
    features, signs = _made_up(n + 4000)
    units = Units.from_arrays(_with_constant(features[:n]), signs[:n], row_bound=float(np.sqrt(FEATURES)))
    terminal.print("clip, step size, window: steps taken, AUC")
    for clip, step_size, window in (
        (CLIP, STEP_SIZE, WINDOW),
        *((CLIP * factor, STEP_SIZE, WINDOW) for factor in (0.5, 2.0)),
        *((CLIP, STEP_SIZE * factor, WINDOW) for factor in (0.5, 2.0, 4.0)),
        (CLIP, STEP_SIZE, 3 * WINDOW),
    ):
        solver = AdaptiveGradientDescent(clip=clip, step_size=step_size, window=window, most_steps=most_steps)
        result = minimize(network, units, budget=Budget(1.0, 1.0 / n**2), solver=solver, start=start())
        auc = float(metrics.roc_auc_score(signs[n:], _log_odds(result.params, features[n:])))
        rows.append((clip, step_size, window, result.transcript.releases, auc))
        terminal.print("{:g}, {:g}, {}: {}, {:.3f}".format(*rows[-1]), markup=False)
    return rows


def _made_up(count: int) -> tuple[Any, Any]:
    """Rows within the documented ranges, their targets drawn by another network; no record was looked at."""
    source = np.random.default_rng(1)
    even, few = source.uniform(-1.0, 1.0, (count, 5)), -1.0 + 2.0 * source.beta(1.0, 4.0, (count, 1))
    flags = source.random((count, 3)) < 1.0 / 3.0
    features = np.hstack([even, few, flags]).astype(np.float32)
    hidden = np.tanh(_with_constant(features) @ source.normal(size=(FEATURES, HIDDEN)))
    log_odds = hidden @ source.normal(size=HIDDEN)
    log_odds = 1.2 * (log_odds - log_odds.mean()) / log_odds.std() + 0.7
    return features, np.where(source.random(count) < 1.0 / (1.0 + np.exp(-log_odds)), 1.0, -1.0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("network-output"), help="folder of the report")
    parser.add_argument("--made-up", action="store_true", help="compare settings on made-up records instead")
    arguments = parser.parse_args()
    if arguments.made_up:
        compare_settings()
    else:
        run(arguments.output)
