"""What keeps the weights small or sparse: a penalty, or an l1 ball, from the arguments of an estimator. Public."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np

from privopt.estimators import arguments
from privopt.problems.constraints import Box, Constraint, L1Ball, Product, Unconstrained
from privopt.problems.regularisers import L1, ElasticNet, GroupLasso, NoRegulariser, Regulariser, Ridge
from privopt.public import real

if TYPE_CHECKING:
    from privopt.planning.plan import Plan
    from privopt.planning.task import Instance

Penalty = Literal["l2", "l1", "elasticnet", "group"]
PENALTIES = ("l2", "l1", "elasticnet", "group", None)
PRIVATE = "private"
GUESSED_RADIUS = (
    "no radius was given, so {:g} is taken for the l1 ball of the scaled weights: give the one that you believe in, "
    "since a smaller ball keeps effects out and a larger one lets noise in."
)
RIDGE_FACTORS = (1.0, 10.0, 100.0, 1000.0)  # times the default strength, what alpha="private" chooses from
SPARSE_FACTORS = (0.3, 1.0, 3.0, 10.0)


@final
@dataclass(frozen=True, kw_only=True)
class PenaltyArguments:
    """What an estimator was given about its penalty, checked where it is used.

    Attributes:
        penalty: "l2", "l1", "elasticnet", "group" or None.
        alpha: the strength, None for the default.
        l1_ratio: share of the l1 term in an elastic net.
        feature_groups: lists of columns, or of their names.
        l1_radius: radius of the l1 ball, None for none.
        guessed_radius: whether nobody gave that radius.
        intercept_inside: whether the ball holds the intercept too.
        alphas: the strengths that a private choice chooses from, None for the default ones.
    """

    penalty: Any = None
    alpha: Any = None
    l1_ratio: Any = 0.5
    feature_groups: Any = None
    l1_radius: Any = None
    guessed_radius: bool = False
    intercept_inside: bool = False
    alphas: Any = None

    def __post_init__(self) -> None:
        """Check what a fit would look at only where it matters."""
        if not 0 <= real("l1_ratio", self.l1_ratio) <= 1:
            raise ValueError(f"l1_ratio must lie between 0 (a ridge) and 1 (sparse), got {self.l1_ratio!r}.")
        if self.alphas is not None and not isinstance(self.alpha, str):
            raise ValueError(
                "alphas was given without alpha='private': they are what a private choice of the strength chooses "
                "from. Give alpha='private' with them, or leave them out."
            )

    def check_groups(self) -> None:
        """Refuse groups of features that nothing looks at.

        Raises:
            ValueError: they were given beside another penalty.
        """
        if self.feature_groups is not None and (self.penalty != "group" or self.l1_radius is not None):
            raise ValueError(
                "feature_groups was given, but nothing uses them: give penalty='group' with them, without l1_radius, "
                "or leave them out."
            )

    @property
    def is_chosen(self) -> bool:
        """Whether the strength is to be chosen privately."""
        return isinstance(self.alpha, str) and self.alpha == PRIVATE

    @property
    def is_penalised(self) -> bool:
        """Whether there is a penalty that has a strength."""
        return self.penalty is not None and self.l1_radius is None

    @property
    def is_sparse(self) -> bool:
        """Whether it makes weights exactly zero."""
        return self.is_penalised and self.penalty != "l2"

    def strength(self, default: float) -> float:
        """alpha, or the default.

        Raises:
            ValueError, TypeError: it is out of its range.
        """
        if self.alpha is None:
            return default
        if isinstance(self.alpha, str):
            raise ValueError(f"alpha must be a number, None or 'private', got {self.alpha!r}.")
        return arguments.positive("alpha", self.alpha, "the strength of the penalty", zero=True)

    def strengths(self, default: float) -> tuple[float, ...]:
        """The public grid that a private choice chooses from: `alphas`, or multiples of the default.

        Raises:
            ValueError, TypeError: alphas is no list of at least two strengths.
        """
        if self.alphas is None:
            factors = SPARSE_FACTORS if self.is_sparse else RIDGE_FACTORS
            return tuple(factor * default for factor in factors)
        if isinstance(self.alphas, str) or np.ndim(self.alphas) != 1 or len(self.alphas) < 2:
            raise ValueError(
                f"alphas must be a list of at least two strengths to choose from, got {self.alphas!r}."
            )
        return tuple(
            arguments.positive("each of alphas", alpha, "a strength of the penalty", zero=True)
            for alpha in np.asarray(self.alphas).tolist()
        )

    def regulariser(
        self, *, width: int, default: float, intercept: bool, kind: str, names: Sequence[str] | None
    ) -> Regulariser:
        """The penalty on the weights of scaled features; the intercept is free.

        Args:
            width: number of features.
            default: the strength where none was given.
            intercept: whether a constant column follows the features.
            kind: the estimator's name.
            names: of the features, where they are known.
        Raises:
            ValueError, TypeError: an argument is out of its range, or contradicts another.
        """
        self._check(kind)
        if not self.is_penalised:
            return NoRegulariser()
        alpha = self.strength(default)
        if alpha == 0:
            return NoRegulariser()
        weights = (1.0,) * width + (0.0,) if intercept else None
        if self.penalty == "l1":
            return L1(alpha, weights)
        if self.penalty == "elasticnet":
            ratio = real("l1_ratio", self.l1_ratio)
            return ElasticNet(alpha * ratio, alpha * (1.0 - ratio), weights)
        if self.penalty == "group":
            return GroupLasso(alpha, groups_of(self.feature_groups, width, names))
        return Ridge(alpha, weights)

    def constraint(self, *, width: int, outputs: int, intercept: bool) -> Constraint:
        """The l1 ball of the weights, or everything. The intercept lies in a box of the same radius.

        A bounded set has a mirror map, so the intercept cannot be left free; inside the ball it would compete with the
        weights.
        """
        if self.l1_radius is None:
            return Unconstrained()
        radius = arguments.positive("l1_radius", self.l1_radius, "the largest sum of the weights' sizes")
        ball = L1Ball(radius)
        if not intercept or self.intercept_inside:
            return ball
        return Product(((ball, width * outputs), (Box(-radius, radius), outputs)))

    def _settings(self, alpha: float | None) -> dict[str, float | str]:
        """What a plan shows."""
        if self.l1_radius is not None:
            return {"penalty": "l1 ball", "l1_radius": float(self.l1_radius)}
        shown: dict[str, float | str] = {"penalty": "none" if self.penalty is None else str(self.penalty)}
        if self.penalty == "elasticnet":
            shown["l1_ratio"] = float(self.l1_ratio)
        if alpha is not None:
            shown["alpha"] = alpha
        return shown | ({"alpha": PRIVATE} if self.is_chosen else {})

    def shown_in(self, plan: Plan, alpha: float | None) -> Plan:
        """The plan of a fit, with what it says about the penalty; `alpha` is the strength, where it is known."""
        notices = (
            (*plan.notices, GUESSED_RADIUS.format(self.l1_radius)) if self.guessed_radius else plan.notices
        )
        return replace(plan, settings={**plan.settings, **self._settings(alpha)}, notices=notices)

    def describe(self) -> str | None:
        """The choice in a sentence, where it is not the plain one."""
        if self.l1_radius is not None:
            by = "a guess, since none was given" if self.guessed_radius else "given by the user"
            what = "weights and intercepts" if self.intercept_inside else "weights"
            return f"Radius of the l1 ball of the scaled {what}, {by}: {float(self.l1_radius):g}."
        if self.penalty in ("l2", None):
            return None
        kinds = {
            "l1": "the sum of the sizes of the weights",
            "elasticnet": f"an elastic net with l1_ratio = {self.l1_ratio}",
            "group": f"the lengths of {len(self.feature_groups or ())} groups of weights",
        }
        return f"Penalty, given by the user: {kinds[self.penalty]}."

    def _check(self, kind: str) -> None:
        if not (self.penalty is None or isinstance(self.penalty, str)) or self.penalty not in PENALTIES:
            raise ValueError(
                f"penalty must be one of 'l2', 'l1', 'elasticnet', 'group' or None, got {self.penalty!r}."
            )
        if not self.is_penalised and self.alpha is not None:
            why = "l1_radius" if self.l1_radius is not None else "penalty=None"
            raise ValueError(
                f"alpha={self.alpha!r} was given beside {why}: {kind} then has no penalty that it could be the "
                "strength of. Leave it out, or choose a penalty."
            )
        if self.l1_radius is not None and self.penalty not in ("l2", None):
            raise ValueError(
                f"penalty={self.penalty!r} and l1_radius={self.l1_radius!r} were both given: the ball takes the place "
                "of the penalty. Give penalty=None with it, or leave l1_radius out."
            )
        if self.penalty == "group" and self.feature_groups is None:
            raise ValueError(
                "feature_groups is missing: penalty='group' needs the lists of columns whose weights vanish together, "
                "such as [[0, 1, 2], [3, 4]], or of their names. A column in no group is not penalised."
            )


def groups_of(feature_groups: Any, width: int, names: Sequence[str] | None) -> tuple[tuple[int, ...], ...]:
    """Groups of columns as tuples of positions.

    Args:
        feature_groups: sequence of sequences of positions, or of names.
        width: number of features.
        names: of the features, where they are known.
    Raises:
        TypeError, ValueError: something is no column, or is in two groups.
    """
    if isinstance(feature_groups, str) or not isinstance(feature_groups, Sequence | np.ndarray):
        raise TypeError(f"feature_groups must be a list of lists of columns, got {feature_groups!r}.")
    position = {} if names is None else {name: index for index, name in enumerate(names)}
    groups: list[tuple[int, ...]] = []
    for group in feature_groups:
        if isinstance(group, str) or not isinstance(group, Sequence | np.ndarray) or not len(group):
            raise TypeError(f"each of feature_groups must be a non-empty list of columns, got {group!r}.")
        groups.append(tuple(_column(member, width, position) for member in group))
    members = [column for group in groups for column in group]
    if len(set(members)) < len(members):
        raise ValueError("feature_groups holds a column twice: groups must not overlap.")
    return tuple(groups)


def _column(member: Any, width: int, position: dict[str, int]) -> int:
    if isinstance(member, str):
        if member not in position:
            known = (
                "X is no DataFrame with names"
                if not position
                else f"the columns are {', '.join(position)[:200]}"
            )
            raise ValueError(
                f"feature_groups names the column {member!r}, but {known}: give positions instead."
            )
        return position[member]
    if isinstance(member, bool) or not isinstance(member, int | np.integer) or not 0 <= member < width:
        raise ValueError(
            f"feature_groups must hold positions from 0 to {width - 1} or names, got {member!r}."
        )
    return int(member)


def default_strength(penalty: PenaltyArguments, instance: Instance) -> float:
    """For a ridge `default_ridge` or `default_user_ridge`; else the noise of a gradient, `factor C / (n mu)`.

    The latter is the standard deviation of an entry of one clipped mean gradient bought with the whole budget: a
    weight whose effect is below it cannot be told from noise. A strength of this size was nearly neutral on all tables
    that were tried. Averaged iterates keep most weights away from zero until about four times as much, which costs
    accuracy on tables without many idle features, so it is not the default.

    Args:
        penalty: what the estimator was given.
        instance: the loss, sizes and bounds, and the budget of the fit. For an infinite one 0.1 / n, which is where
            ridges of records end as the budget grows; of users, and for other penalties, 1 / n.
    """
    from privopt.planning import descent_theory, whitening  # late: for a fit alone
    from privopt.planning.user_gradient_descent import first_clip
    from privopt.planning.user_whitening import default_user_ridge

    if not instance.is_private and (instance.public.by_user or penalty.is_sparse):
        return 1.0 / instance.public.n
    if instance.public.by_user:
        if not penalty.is_sparse:
            return default_user_ridge(instance)
        return descent_theory.noise_of_one(instance, first_clip(instance))
    if not penalty.is_sparse:
        return whitening.default_ridge(instance)
    return descent_theory.noise_of_one(instance, descent_theory.default_clip(instance))
