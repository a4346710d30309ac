"""The loss of records of two classes that belong to groups, of which the worst off counts.

With F_g(w) the mean loss of the records of group g, what is minimised is

    max over y in Y of  sum over groups of y_g F_g(w)

where Y are all weights that sum to 1 (the worst group), or those with y_g <= p_g / alpha (the mean over the worst share
alpha of the records, as far as whole groups can make it up: CVaR over groups), p_g the group's share of the records.

Source:
    Sagawa, Koh, Hashimoto, Liang 2020 (group DRO); Rockafellar, Uryasev 2000 (CVaR).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.later import Array, Float, Int, jnp
from privopt.problems.glm import GLMLoss, LossFacts, ScalarLoss, Values

FLOOR = 0.02  # share below which a group counts less than the others
CAP = 2.0  # about three times the logistic loss of the zero model
_HALVINGS = 200


@dataclass(frozen=True)
class GroupedLoss(GLMLoss):
    """`base` of records whose target says label and group: `t = (g + 1) label`, g = 0, 1, ..., label -1 or +1.

    Any other target is a record of which label or group is unknown; it has no loss. As a loss of one record it is the
    base; that groups are weighted against each other is known to the solvers made for it only.

    Attributes:
        base: a loss of labels -1 and +1.
        groups: how many there are.
        shares: p, each group's public share of the records; None where they are to be released.
        floor: shares are divided by as if they were no smaller: a rarer group counts less than its own share.
        cap: B, the largest loss of one record that a group's mean counts.
        alpha: of CVaR over groups, in (0, 1]; None for the worst group.
    Raises:
        ValueError: the shares are no shares of that many groups, or a number is out of its range.
    """

    base: ScalarLoss
    groups: int
    shares: tuple[float, ...] | None = None
    floor: float = FLOOR
    cap: float = CAP
    alpha: float | None = None

    def __post_init__(self) -> None:
        if self.groups < 1:
            raise ValueError(f"groups must be at least 1, got {self.groups!r}.")
        if self.shares is not None:
            check_shares(self.shares, self.groups)
        if not 0.0 < self.floor <= 1.0:
            raise ValueError(
                f"floor must be in (0, 1], got {self.floor!r}: it is the smallest share divided by."
            )
        if not 0.0 < self.cap < math.inf:
            raise ValueError(
                f"cap must be positive and finite, got {self.cap!r}: it is the largest loss counted."
            )
        if self.alpha is not None and not 0.0 < self.alpha <= 1.0:
            raise ValueError(
                f"alpha must be in (0, 1], got {self.alpha!r}: it is the worst share of the records."
            )

    @property
    def facts(self) -> LossFacts:
        of_base = self.base.facts
        return LossFacts(
            name=f"{of_base.name} by group",
            lipschitz=of_base.lipschitz,
            curvature=of_base.curvature,
            convex=of_base.convex,
            value_at_zero=of_base.value_at_zero,
        )

    @property
    def balances(self) -> bool:
        return self.base.balances

    def steepest_slope(self, prediction: Values) -> Values:
        """That of the base."""
        return self.base.steepest_slope(prediction)

    def group_of(self, target: Values) -> Int[Array, "..."]:
        """1, 2, ... for a record of the first group, the second, ...; 0 for one that is in none."""
        code = jnp.abs(target)
        known = (code >= 1.0) & (code <= self.groups) & (code == jnp.floor(code))
        return jnp.where(known, code, 0.0).astype(jnp.int32)

    def label_of(self, target: Values) -> Values:
        """-1 or +1; 0 where it is unknown."""
        return jnp.where(self.group_of(target) > 0, jnp.sign(target), 0.0)

    def value(self, prediction: Values, target: Values) -> Values:
        known = self.group_of(target) > 0
        return jnp.where(known, self.base.value(prediction, self.label_of(target)), 0.0)

    def slope(self, prediction: Values, target: Values) -> Values:
        known = self.group_of(target) > 0
        return jnp.where(known, self.base.slope(prediction, self.label_of(target)), 0.0)

    def predict_mean(self, prediction: Values) -> Values:
        return self.base.predict_mean(prediction)

    def divisors(self, shares: NDArray[np.float64]) -> NDArray[np.float64]:
        """What sums over the groups are divided by: the shares, no smaller than the floor."""
        return np.maximum(shares, min(self.floor, 1.0 / self.groups))

    def mean_losses(self, sums: Any, shares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Each group's mean loss, from `sum over its records of (loss - cap / 2) / n`.

        What is taken from each loss is put back for the share of the records that the group is said to have. The
        result is cut to [0, cap] nowhere: noise has mean zero, and cutting it would favour small groups.
        """
        return (np.asarray(sums, np.float64) + 0.5 * self.cap * shares) / self.divisors(shares)

    def play(self, scores: NDArray[np.float64], shares: NDArray[np.float64]) -> NDArray[np.float64]:
        """The weights y in Y nearest (in relative entropy) to those in proportion to sqrt(share) * exp(score).

        At equal scores a group has more than its share, less than it would have if groups rather than records counted.
        """
        logs = 0.5 * np.log(shares) + scores
        if self.alpha is not None:
            return capped(logs, shares / self.alpha)
        weights = np.exp(logs - np.max(logs))
        return weights / np.sum(weights)


def one_hot(index: Int[Array, "..."], groups: int) -> Float[Array, "... groups"]:
    """A 1 at the place of each group 1, 2, ...; zeros for group 0."""
    places = jnp.arange(1, groups + 1, dtype=jnp.int32)
    return (index[..., None] == places).astype(jnp.float64)


def check_shares(shares: tuple[float, ...], groups: int) -> None:
    """Refuse numbers that are no shares of so many groups.

    Raises:
        ValueError: it says why.
    """
    if len(shares) != groups:
        raise ValueError(f"shares must be one number for each of the {groups} groups, got {len(shares)}.")
    if not all(0.0 < share <= 1.0 for share in shares):
        raise ValueError(f"shares must be above 0 and at most 1, got {list(shares)!r}.")
    if abs(math.fsum(shares) - 1.0) > 1e-6:
        raise ValueError(
            f"shares must sum to 1, got {math.fsum(shares):g}: give each group's share of all records, or 'private' to "
            "have them estimated."
        )


def capped(logs: NDArray[np.float64], caps: NDArray[np.float64]) -> NDArray[np.float64]:
    """The point with entries at most `caps` that sums to 1 and is nearest to exp(logs) in relative entropy.

    It is min(c exp(logs), caps) for the one factor c at which it sums to 1; log c is found by bisection.

    Args:
        logs: finite; a number added to all of them changes nothing.
        caps: positive, with a sum of at least 1.
    """
    if np.sum(caps) <= 1.0:
        return caps / np.sum(caps)
    low, high = -float(np.max(logs - np.log(caps))) - 60.0, float(np.max(np.log(caps) - logs))
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        below = np.sum(np.exp(np.minimum(middle + logs, np.log(caps)))) < 1.0
        low, high = (middle, high) if below else (low, middle)
    found = np.exp(np.minimum(high + logs, np.log(caps)))
    return found / np.sum(found)
