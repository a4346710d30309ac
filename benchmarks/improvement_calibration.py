"""Hold what reports say of the quality of a model to account, on problems whose true share is known.

    python -m benchmarks.improvement_calibration [--problems 200] [--first 0]

Each problem has its own n, number of columns, kind of columns, epsilon, base rate and strength of the signal; even ones
have two classes, odd ones numbers to predict. One in seven has no signal: half of the odd ones among them are coin
flips. The true share is that of the improvement from the best constant to the model that drew the targets, in
expected loss on new records. The signal of a problem exceeds the noise where the model keeps more than half of it.
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from privopt import LinearRegression, LogisticRegression
from privopt.planning.plan import IMPROVEMENT_ENDS, IMPROVEMENT_SHARE

Floats = NDArray[np.float64]

SIZES, WIDTHS = (1_000, 3_000, 10_000), (4, 12)
EPSILONS, STRENGTHS = (0.1, 10.0), (0.05, 3.0)  # drawn evenly by their logarithms
NO_SIGNAL, DELTA = 1 / 7, 1e-6
RESIDUALS = (0.05, 0.15, 0.4)  # of targets in [-1, 1]
FRESH = 20_000  # new records, on which the true share is computed
EXCEEDS = 0.5  # the share from which on the signal exceeds the noise
ROUNDED = 20.0  # shares are said to a twentieth


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a report said of one problem, and what is true.

    Attributes:
        two_classes: whether there were.
        true: the share; minus infinity without a signal, as of no improvement nothing can be reached.
        said: the range, rounded as in the sentence; None where nothing was found.
    """

    two_classes: bool
    true: float
    said: tuple[float, float] | None

    @property
    def holds(self) -> bool:
        """Whether the true share lies in the range that was said."""
        assert self.said is not None
        within = 0.5 / ROUNDED + 1e-9
        return self.said[0] - within <= min(max(self.true, 0.0), 1.0) <= self.said[1] + within


def told(seed: int, sizes: Sequence[int] = SIZES, widths: Sequence[int] = WIDTHS) -> Told:
    """Fit one problem and compare."""
    draw = np.random.default_rng([seed, 77])
    n, width = int(draw.choice(sizes)), int(draw.choice(widths))
    options: dict[str, Any] = {
        "epsilon": _even(draw, *EPSILONS),
        "delta": DELTA,
        "bounds": (-1, 1),
        "random_state": seed,
    }
    columns = _columns(draw, width)
    weights = draw.normal(size=width) * (1.0 if draw.random() < 0.5 else draw.random(width) < 2.5 / width)
    weights = weights if np.any(weights) else np.eye(width)[0]
    strength = 0.0 if draw.random() < NO_SIGNAL else _even(draw, *STRENGTHS)
    features, fresh = columns(draw, n), columns(np.random.default_rng([seed, 5]), FRESH)
    middle, spread = float(np.mean(fresh @ weights)), float(np.std(fresh @ weights))

    def lean(rows: Floats) -> Floats:
        return strength * (rows @ weights - middle) / spread

    two_classes = seed % 2 == 0
    if two_classes:
        base = draw.uniform(-3.0, 3.0) if draw.random() < 0.6 else 0.0
        targets: Any = (draw.random(n) < expit(base + lean(features))).astype(int)
        model: Any = LogisticRegression(classes=[0, 1], **options).fit(features, targets)
        best, found = base + lean(fresh), model.decision_function(fresh)
        constant = np.full(FRESH, logit(np.mean(expit(best))))
        whole, excess = _divergence(best, constant), _divergence(best, found)
    else:
        residual, shift = float(draw.choice(RESIDUALS)), draw.uniform(-0.3, 0.3)
        best = shift + residual * lean(fresh)
        targets = np.clip(shift + residual * (lean(features) + draw.normal(size=n)), -1.0, 1.0)
        if not strength and draw.random() < 0.5:
            best, targets = np.zeros(FRESH), draw.choice([-1.0, 1.0], n)
        model = LinearRegression(target_bounds=(-1, 1), **options).fit(features, targets)
        whole, excess = float(np.var(best)), float(np.mean((model.predict(fresh) - best) ** 2))
    findings = model.privacy_.findings
    ends = tuple(_rounded(float(findings[name].value)) for name in IMPROVEMENT_ENDS if name in findings)
    assert IMPROVEMENT_SHARE in findings
    return Told(
        two_classes=two_classes,
        true=1.0 - excess / whole if strength else -np.inf,
        said=(ends[0], ends[1]) if ends else None,
    )


def summary(found: Iterable[Told]) -> dict[str, float]:
    """By name, how often what was said is right.

    Returns:
        "without signal" and "claimed" among them; "signal exceeds noise" and the share that is "given" among them;
        "ranges" said of problems with a signal, the share of them that "holds", and their mean "width".
    """
    found = list(found)
    without = [one for one in found if one.true == -np.inf]
    clear = [one for one in found if one.true > EXCEEDS]
    ranges = [one for one in found if one.said is not None and one.true > -np.inf]
    widths = [one.said[1] - one.said[0] for one in ranges if one.said is not None]
    return {
        "without signal": len(without),
        "claimed": float(np.mean([one.said is not None for one in without])) if without else 0.0,
        "signal exceeds noise": len(clear),
        "given": float(np.mean([one.said is not None for one in clear])) if clear else 1.0,
        "ranges": len(ranges),
        "holds": float(np.mean([one.holds for one in ranges])) if ranges else 1.0,
        "width": float(np.mean(widths)) if widths else 0.0,
    }


def table(found: Sequence[Told]) -> list[str]:
    """The summaries by kind of problem, as a table."""
    kinds = {
        "two classes": [one for one in found if one.two_classes],
        "numbers": [one for one in found if not one.two_classes],
        "all": found,
    }
    rows = {kind: summary(some) for kind, some in kinds.items()}
    names = list(rows["all"])
    lines = [f"| problems | {' | '.join(names)} |", f"| --- {'| ---: ' * len(names)}|"]
    shares = {"claimed", "given", "holds"}
    for kind, row in rows.items():
        cells = [
            f"{row[name]:.0%}"
            if name in shares
            else f"{row[name]:.2f}"
            if name == "width"
            else f"{row[name]:.0f}"
            for name in names
        ]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return lines


def _even(draw: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(draw.uniform(np.log(low), np.log(high))))


def _columns(draw: np.random.Generator, width: int) -> Callable[[np.random.Generator, int], Floats]:
    """What draws rows in [-1, 1]: even and independent, correlated, or half of them flags, some of them rare."""
    kind = draw.choice(["even", "correlated", "flags"])
    if kind == "correlated":
        mixed = np.eye(width) + draw.normal(size=(width, width)) / np.sqrt(width)
        mixed = mixed / np.linalg.norm(mixed, axis=0)
        return lambda some, n: np.clip(some.normal(size=(n, width)) @ mixed / 3.0, -1.0, 1.0)
    rates = np.exp(draw.uniform(np.log(0.02), np.log(0.5), width // 2)) if kind == "flags" else np.empty(0)

    def rows(some: np.random.Generator, n: int) -> Floats:
        even = some.uniform(-1.0, 1.0, (n, width))
        even[:, : len(rates)] = some.random((n, len(rates))) < rates
        return even

    return rows


def _divergence(best: Floats, found: Floats) -> float:
    """The expected excess of the logistic loss where the log-odds are `best`."""
    chance = expit(best)
    return float(np.mean(np.logaddexp(0.0, found) - np.logaddexp(0.0, best) - chance * (found - best)))


def _rounded(share: float) -> float:
    return round(ROUNDED * min(max(share, 0.0), 1.0)) / ROUNDED


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first problem")
    options = parser.parse_args(arguments)
    found = [told(seed) for seed in range(options.first, options.first + options.problems)]
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
