"""Variance-reduced Frank-Wolfe: one pass over the units, along trees whose nodes reuse the gradients of their parents.

Minimises the population objective F(w) + ridge over an l1 ball, a simplex or a polytope, F convex and smooth.
Source: Asi, Feldman, Koren, Talwar 2021, Algorithm 3.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privopt.curator.base import Curator
from privopt.later import Array, jnp
from privopt.mechanisms.base import StreamMechanism
from privopt.mechanisms.vertex_draws import BestVertex
from privopt.mechanisms.vertex_stream import VertexTable
from privopt.planning import vertex_methods
from privopt.planning.notices import NOISE_IS_OFF
from privopt.planning.task import Forecast, Instance
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.scores import VertexSlopeChanges, largest_entry
from privopt.result import Outcome, Status
from privopt.solvers.fields import derived
from privopt.solvers.vertices import VertexSolver

# ---- Trees, batches, clips and forecast of variance-reduced Frank-Wolfe ------------------------------------
# Tree t = 1 .. T is a complete binary tree of depth t, visited depth first, left before right. Its root looks at b
# fresh units and each right child of level j at k_j = ceil(b 2^-j) others; a left child looks at none. So the leaves
# follow one another, i = 0, 1, ..., 2^t - 1, and before each of them there is exactly one look: the root's before leaf
# 0, before any other leaf that of the right child where the way down to it leaves the way to leaf i - 1. If 2^z is the
# largest power of 2 that divides i, that child is of level t - z, its scores stand on those of leaf i - 2^z, and the
# 2^z leaves from i on stand on its own.
#
# Clips C_j = min(2 C, C 2^(-j/2) k_j 2^j / b) make each level cost at most what the root costs, 2^t (c C eta_t / b)^2 /
# 8 (eta_t in the unit of the slopes), whatever the smoothness of the loss.
#
# Source:
#     Asi, Feldman, Koren, Talwar 2021, Algorithm 3; the clips are ours.
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


@dataclass(frozen=True, kw_only=True)
class VarianceReducedFrankWolfe(VertexSolver):
    """Frank-Wolfe in one pass, with the mean gradients of binary trees.

    Attributes:
        vertices, penalty_bound, entry_bound: see `VertexSolver`.
        clip: C_inf, the largest entry of one unit's gradient, enforced by scaling the gradient; differences of level j
            are scaled to C_j, see the comment above.
        trees: T; 0 returns the start and spends nothing.
        root_batch: b, the units that the root of each tree looks at; a right child of level j looks at ceil(b 2^-j).
    Guarantee:
        A unit is looked at once, by one node of level j of one tree t, and moves the scores of the 2^(t-j) choices at
        the leaves below it by a range of at most eta_t c C_j / k_j. Its price is the sum over those, the price of the
        run the largest of all nodes': `VertexTable` adds it up exactly, for any data, loss and parameters. The clips
        make the roots the dearest, and eta_t makes all trees cost the same: 2^t (eta_t c C / b)^2 / 8 = 1 / (2 z^2).
    Differs from the paper:
        draws from a softmax, priced by zCDP over the units' own paths, in place of Laplace noise, composition and
        amplification; differences are clipped by level, so that nothing rests on the smoothness of the loss.
    Source:
        Asi, Feldman, Koren, Talwar 2021, Algorithm 3.
    """

    name: ClassVar[str] = "variance-reduced-frank-wolfe"

    trees: int = derived(at_least=0, at_most=20)
    root_batch: int = derived(at_least=2)

    def default_trees(self, instance: Instance) -> int:
        """T: of 2 to 5 trees that the units suffice for, those of the least expected gap on usual data."""
        n, rho = instance.public.n, vertex_methods.rho_of(instance)
        found = {
            trees: self.expected_gap(instance, trees, largest_batch(n, trees), rho, CURVATURE_SHARE)
            for trees in range(FEWEST_TREES, MOST_TREES + 1)
            if largest_batch(n, trees) >= smallest_batch(trees)
        }
        return min(found, key=lambda trees: found[trees]) if found else FEWEST_TREES

    def default_root_batch(self, instance: Instance) -> int:
        """b: the largest that the units suffice for, and never less than leaves 2 units to every look."""
        if not self.trees:
            return smallest_batch(0)
        return max(largest_batch(instance.public.n, self.trees), smallest_batch(self.trees))

    @property
    def rounds(self) -> int:
        """A choice a leaf: 2 + 4 + .. + 2^T."""
        return 2 ** (self.trees + 1) - 2

    def block_sizes(self, public: Public) -> tuple[int, ...]:
        """What every look takes."""
        del public
        return tuple(look.size for look in self.looks())

    def looks(self) -> list[Look]:
        """The looks at fresh units, in order; a choice follows each."""
        return looks(self.trees, self.root_batch, self.clip)

    def stream(self, public: Public) -> StreamMechanism:
        """The choices at all leaves; the sums of the trees stay with the curator."""
        looks = self.looks()
        firsts = [index - look.leaf for index, look in enumerate(looks)]  # where a look's tree begins
        if self.noise_multiplier == 0:
            follows = tuple(
                -1 if look.before < 0 else first + look.before
                for first, look in zip(firsts, looks, strict=True)
            )
            return BestVertex(weights=(1.0,) * len(looks), follows=follows, draws=(1,) * len(looks))
        moved = [public.relation.factor * look.clip / look.size for look in looks]
        entry = [
            largest_entry(self.vertices, look.clip, self._offset_bound(look)) / step
            for look, step in zip(looks, moved, strict=True)
        ]
        rows: list[tuple[tuple[int, float], ...]] = []
        for first, look in zip(firsts, looks, strict=True):
            # A choice of tree t is 2 / 2^(t/2)-bounded range for the root's units, at z = 1.
            temperature = 2.0 / (math.sqrt(2.0**look.tree) * moved[first])
            rows.append(tuple((first + leaf, temperature * moved[first + leaf]) for leaf in look.chain))
        plain = VertexTable(
            weights=tuple(rows),
            draws=(1,) * len(looks),
            participation=VertexTable.one_item(len(looks)),
            largest_item=max(0.5, *entry),
        )
        return vertex_methods.priced(plain, self.noise_multiplier)

    def _offset_bound(self, look: Look) -> float:
        """Of the penalty's gradient, or of its change."""
        return self.penalty_bound if look.level == 0 else 2.0 * self.penalty_bound

    def passes(self) -> float:
        """One in all."""
        return 0.0 if self.still else 1.0

    def filled(self, instance: Instance) -> "VarianceReducedFrankWolfe":
        """Every field but the noise.

        Raises:
            ValueError: there are too few units for the trees.
        """
        solver = super().filled(instance)
        solver.require_units(instance.public)
        return solver

    def forecast(self, instance: Instance) -> Forecast:
        """What is typical, and what to note."""
        notices = (vertex_methods.WORSE_THAN_VERTEX_ANYTIME, *vertex_methods.missing_bound(self, instance))
        if not instance.is_private or self.noise_multiplier == 0 or self.still:
            gap = self.expected_gap(instance, self.trees, self.root_batch, math.inf)
            return Forecast(
                excess=instance.capped(gap),
                meaning="what Frank-Wolfe leaves after so many steps; pessimistic",
                notices=notices if instance.is_private else (NOISE_IS_OFF,),
            )
        return Forecast(
            excess=instance.capped(vertex_methods.typical(self, instance, TYPICAL)),
            meaning=vertex_methods.TYPICAL_MEANING,
            notices=notices,
        )

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 3: look, choose, move; depth first."""
        if self.still:
            return Outcome(start, Status.FINISHED)
        looks = self.looks()
        stream = curator.stream("chosen vertices", self.stream(curator.public), (self.vertices.count,))
        blocks = curator.blocks(self.block_sizes(curator.public))
        points: dict[int, Array] = {}  # of the current tree, where each look was taken
        params = start
        for look, block in zip(looks, blocks, strict=True):
            if look.level == 0:
                points, query = {}, self.slopes(problem, params)
            else:
                query = self.changes(problem, params, points[look.before], look)
            points[look.leaf] = params
            stream.ask("add", query, on=block)
            chosen = jnp.asarray(self.vertices.average(np.asarray(stream.ask("draw"))))
            params = params + look.share * (jnp.reshape(chosen, start.shape) - params)
        return Outcome(params, Status.FINISHED)

    def changes(self, problem: Problem, params: Array, anchor: Array, look: Look) -> VertexSlopeChanges:
        """How the slopes have changed since the parent's look."""
        penalty = problem.regulariser
        return VertexSlopeChanges(
            loss=problem.loss,
            at=params,
            anchor=anchor,
            vertices=self.vertices,
            clip=look.clip,
            offset=penalty.gradient(params) - penalty.gradient(anchor),
            offset_bound=self._offset_bound(look),
        )

    def expected_gap(
        self, instance: Instance, trees: int, root_batch: int, rho: float, share: float = 1.0
    ) -> float:
        """8 L1 R^2 / 2^T + log m / eta_T: what Frank-Wolfe leaves after the last tree, and what its draws do."""
        gap = share * 8.0 * vertex_methods.curvature(self, instance) / 2.0**trees
        if math.isinf(rho):
            return gap
        moved = 2.0 * instance.public.relation.factor * vertex_methods.half_range(self) / root_batch
        return gap + vertex_methods.log_count(self.vertices.count) * moved * math.sqrt(
            2.0**trees / (8.0 * rho)
        )

    def require_units(self, public: Public) -> None:
        """Refuse trees for which there are too few units.

        Raises:
            ValueError: there are.
        """
        trees, batch = self.trees, self.root_batch
        if not trees:
            return
        if batch < smallest_batch(trees):
            raise ValueError(
                f"root_batch must be at least {smallest_batch(trees)} for {trees} trees, so that every look is at 2 "
                f"units or more, got {batch}."
            )
        needed = units_needed(trees, batch)
        if needed > public.n:
            raise ValueError(
                f"{trees} trees with {batch} units at their roots look at {needed} units, and there are n = "
                f"{public.n}: take fewer trees, a smaller root_batch, or another solver."
            )
