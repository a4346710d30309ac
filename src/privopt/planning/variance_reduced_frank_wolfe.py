"""Trees, batches, clips and forecast of variance-reduced Frank-Wolfe.

Tree t = 1 .. T is a complete binary tree of depth t, visited depth first, left before right. Its root looks at b fresh
units and each right child of level j at k_j = ceil(b 2^-j) others; a left child looks at none. So the leaves follow one
another, i = 0, 1, ..., 2^t - 1, and before each of them there is exactly one look: the root's before leaf 0, before any
other leaf that of the right child where the way down to it leaves the way to leaf i - 1. If 2^z is the largest power
of 2 that divides i, that child is of level t - z, its scores stand on those of leaf i - 2^z, and the 2^z leaves from i
on stand on its own.

Clips C_j = min(2 C, C 2^(-j/2) k_j 2^j / b) make each level cost at most what the root costs, 2^t (c C eta_t / b)^2 / 8
(eta_t in the unit of the slopes), whatever the smoothness of the loss.

Source:
    Asi, Feldman, Koren, Talwar 2021, Algorithm 3; the clips are ours.
"""

import math
from dataclasses import dataclass
from typing import Any

from privopt.planning import vertex_methods
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.notices import NOISE_IS_OFF
from privopt.public import Public

TYPICAL = 0.3  # see `vertex_methods.typical`
FEWEST_TREES, MOST_TREES = 2, 5
# Of the worst direction's curvature, to choose trees by: on generated signs the best of 1 to 5 at epsilon 0.5, 1 and 3.
CURVATURE_SHARE = 0.05


@dataclass(frozen=True, kw_only=True)
class Look:
    """One look at fresh units, and the leaf that follows it.

    Attributes:
        tree: t, the depth of its tree.
        leaf: i, the leaf's number in the tree.
        level: j, of the node that looks; 0 for the root.
        before: the leaf of the tree whose scores these stand on; -1 for the root.
        size: how many units are looked at.
        clip: C_j.
    """

    tree: int
    leaf: int
    level: int
    before: int
    size: int
    clip: float

    @property
    def share(self) -> float:
        """How far the leaf's vertex is moved towards: 2 / (2^(t-1) + i + 1)."""
        return 2.0 / (2.0 ** (self.tree - 1) + self.leaf + 1.0)

    @property
    def leaves(self) -> int:
        """How many leaves stand on these scores."""
        return 2 ** (self.tree - self.level)

    @property
    def chain(self) -> tuple[int, ...]:
        """The leaves of the tree whose looks add up to these scores, this one last."""
        found = [self.leaf]
        while found[-1] > 0:
            found.append(found[-1] & (found[-1] - 1))
        return tuple(reversed(found))


def looks(trees: int, root_batch: int, clip: float) -> list[Look]:
    """All looks, in order."""
    found: list[Look] = []
    for tree in range(1, trees + 1):
        for leaf in range(2**tree):
            level = tree + 1 - (leaf & -leaf).bit_length() if leaf else 0
            size = math.ceil(root_batch / 2**level)
            tightest = clip * 2.0 ** (-level / 2.0) * size * 2.0**level / root_batch
            found.append(
                Look(
                    tree=tree,
                    leaf=leaf,
                    level=level,
                    before=leaf & (leaf - 1) if leaf else -1,
                    size=size,
                    clip=min(2.0 * clip, tightest) if level else clip,
                )
            )
    return found


def units_needed(trees: int, root_batch: int) -> int:
    """sum over t of b + sum over j of 2^(j-1) ceil(b 2^-j)."""
    return sum(
        root_batch + sum(2 ** (j - 1) * math.ceil(root_batch / 2**j) for j in range(1, tree + 1))
        for tree in range(1, trees + 1)
    )


def largest_batch(n: int, trees: int) -> int:
    """The largest b for which n units are enough; 0 if none is."""
    low, high = 0, n
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if units_needed(trees, middle) <= n else (low, middle - 1)
    return low


def smallest_batch(trees: int) -> int:
    """The least b with 2 units at every look: 2^T + 1."""
    return 2**trees + 1


def expected_gap(
    solver: Any, instance: Instance, trees: int, root_batch: int, rho: float, share: float = 1.0
) -> float:
    """8 L1 R^2 / 2^T + log m / eta_T: what Frank-Wolfe leaves after the last tree, and what its draws do."""
    gap = share * 8.0 * vertex_methods.curvature(solver, instance) / 2.0**trees
    if math.isinf(rho):
        return gap
    moved = 2.0 * instance.public.relation.factor * vertex_methods.half_range(solver) / root_batch
    return gap + vertex_methods.log_count(solver.vertices.count) * moved * math.sqrt(2.0**trees / (8.0 * rho))


def default_trees(solver: Any, instance: Instance) -> int:
    """T: of 2 to 5 trees that the units suffice for, those of the least expected gap on data that curve as usual."""
    n, rho = instance.public.n, vertex_methods.rho_of(instance)
    found = {
        trees: expected_gap(solver, instance, trees, largest_batch(n, trees), rho, CURVATURE_SHARE)
        for trees in range(FEWEST_TREES, MOST_TREES + 1)
        if largest_batch(n, trees) >= smallest_batch(trees)
    }
    return min(found, key=lambda trees: found[trees]) if found else FEWEST_TREES


def default_root_batch(solver: Any, instance: Instance) -> int:
    """b: the largest that the units suffice for, and never less than leaves 2 units to every look."""
    if not solver.trees:
        return smallest_batch(0)
    return max(largest_batch(instance.public.n, solver.trees), smallest_batch(solver.trees))


DEFAULTS = {**vertex_methods.DEFAULTS, "trees": default_trees, "root_batch": default_root_batch}


def require_units(solver: Any, public: Public) -> None:
    """Refuse trees for which there are too few units.

    Raises:
        ValueError: there are.
    """
    trees, batch = solver.trees, solver.root_batch
    if not trees:
        return
    if batch < smallest_batch(trees):
        raise ValueError(
            f"root_batch must be at least {smallest_batch(trees)} for {trees} trees, so that every look is at 2 units "
            f"or more, got {batch}."
        )
    needed = units_needed(trees, batch)
    if needed > public.n:
        raise ValueError(
            f"{trees} trees with {batch} units at their roots look at {needed} units, and there are n = {public.n}: "
            "take fewer trees, a smaller root_batch, or another solver."
        )


def forecast(solver: Any, instance: Instance) -> Forecast:
    """What is typical, and what to note."""
    notices = (vertex_methods.WORSE_THAN_VERTEX_ANYTIME, *vertex_methods.missing_bound(solver, instance))
    if not instance.is_private or solver.noise_multiplier == 0 or solver.still:
        gap = expected_gap(solver, instance, solver.trees, solver.root_batch, math.inf)
        return Forecast(
            excess=instance.capped(gap),
            meaning="what Frank-Wolfe leaves after so many steps; pessimistic",
            notices=notices if instance.is_private else (NOISE_IS_OFF,),
        )
    return Forecast(
        excess=instance.capped(vertex_methods.typical(solver, instance, TYPICAL)),
        meaning=vertex_methods.TYPICAL_MEANING,
        notices=notices,
    )
