"""The events of a declared plan that have not been drawn yet."""

from collections import deque

from privopt.errors import PlanMismatch
from privopt.ledger.events import Event, Parallel, leaf_counts, repeat, sequence


class DeclaredEvents:
    """A plan as a multiset of leaves and a queue of parallel nodes; drawing a leaf takes constant time.

    Args:
        plan: the tree that was priced.
    """

    def __init__(self, plan: Event) -> None:
        leaves, parallels = leaf_counts(plan)
        self._leaves = dict(leaves)
        self._parallels = deque(parallels)

    @property
    def next_parallel(self) -> Parallel | None:
        """The parallel node that has to be drawn next."""
        return self._parallels[0][0] if self._parallels else None

    def undrawn(self) -> Event:
        """What is left, as a tree."""
        left = [repeat(leaf, count) for leaf, count in self._leaves.items() if count]
        return sequence(left + [repeat(node, count) for node, count in self._parallels])

    def require(self, name: str, event: Event) -> None:
        """Check that all of `event` is left.

        Args:
            name: what is released, for the message.
            event: a tree; its parallel nodes must be the next ones, in order.

        Raises:
            PlanMismatch: some of it is not left.
        """
        leaves, parallels = leaf_counts(event)
        for leaf, count in leaves.items():
            left = self._leaves.get(leaf, 0)
            if count > left:
                known = "the plan does not hold it" if leaf not in self._leaves else f"{left} of it are left"
                raise PlanMismatch(
                    f"{name!r} asked for {count} x ({leaf.describe()}), but {known}. A declared plan is released as "
                    "it was priced: put the release into the plan, or open the ledger with a filter "
                    "(composition='gaussian', 'zcdp' or 'basic') if it depends on earlier releases."
                )
        queue = iter(self._parallels)
        for node, count in parallels:
            planned = next(queue, None)
            if planned is None or planned[0] != node or planned[1] < count:
                raise PlanMismatch(
                    f"{name!r} asked for {count} x ({node.describe()}), which is not the plan's next parallel node. "
                    "Release the blocks in the order in which the plan names them."
                )

    def draw(self, event: Event) -> None:
        """Take `event` out; `require` has checked that it is there."""
        leaves, parallels = leaf_counts(event)
        for leaf, count in leaves.items():
            self._leaves[leaf] -= count
        for _, count in parallels:
            node, planned = self._parallels.popleft()
            if planned > count:
                self._parallels.appendleft((node, planned - count))
