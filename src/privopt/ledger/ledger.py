"""The ledger: it says yes or no before any data is read, and keeps what was said.

Two kinds, and why a ledger never changes from one to the other:

* **With a plan** every event is fixed when the ledger opens. The plan is priced once, by the best accountant there is
  (privacy-loss distributions included), and each release is drawn from it like a card from a pack. Queries may depend
  on earlier releases, and so may the order of the draws and the decision to stop (concurrent composition: Vadhan,
  Zhang 2023), but nothing that is not in the plan is ever released.
* **Without a plan** events may be chosen from what was released before, so numerical accountants and the least of
  several bounds are not valid: their theorems are about compositions fixed beforehand, and a bound that is picked after
  seeing releases is not a bound. Such a ledger is a *privacy filter* in one currency, chosen when it opens:
  "gaussian" (Smith, Thakurta 2022), "zcdp" (Whitehouse, Ramdas, Rogers, Wu 2023) or "basic" (Rogers, Roth, Ullman,
  Vadhan 2016). It stops before the sum would pass the cap. An event that the currency cannot price is refused
  (`NotPriceable`); the currency never switches.

For the same reason the guarantee of a ledger, `epsilon()`, is that of its whole plan or cap, however little of it was
used. What the releases made so far would cost, had they been the plan, is `spent_epsilon()`, for reports.
"""

import math
from collections import deque
from collections.abc import Iterable
from typing import Any

from privopt.errors import BudgetExceeded, PlanMismatch
from privopt.ledger import accounting
from privopt.ledger.amounts import Budget, or_nan
from privopt.ledger.events import DeltaEvent, Event, NoEvent, Parallel, leaf_counts, repeat, sequence
from privopt.ledger.filters import (
    KEPT_BY,
    TOLERANCE,
    Blocks,
    Composition,
    Cost,
    Entry,
    Filtered,
    Part,
    SetAside,
    add_charge,
    check_bad_event_delta,
    check_composition,
    entries_to_event,
    entries_to_lines,
    entries_to_list,
    filter_cap,
    filter_cost,
    filter_delta,
    filter_epsilon,
    json_number,
    require_room,
    sum_of_costs,
)
from privopt.ledger.payer import NotCopyable, Payer, SpendLock
from privopt.public import Relation


# ---- The events of a declared plan that have not been drawn yet --------------------------------------------
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


SEEDED = "seeded: not private"


class Ledger(NotCopyable, Payer):
    """Charges releases against a budget; refuses before anything is recorded.

    Args:
        budget: the guarantee to keep.
        relation: the neighbouring relation that noise multipliers are relative to.
        plan: every event that may be charged, as one tree. It is priced now.
        composition: "plan" with a plan; without one the currency of the filter, "gaussian", "zcdp" (the default) or
            "basic".
        bad_event_delta: part of delta set aside for bad events and rounding (a plan may hold those events instead).
        seeded: the noise, or a draw of units or records, comes from a seed, so nothing here is private; reports say so.

    Raises:
        BudgetExceeded: the plan costs more than the budget.
        NotPriceable: no accountant can price the plan.
    """

    def __init__(
        self,
        budget: Budget,
        relation: Relation | str,
        *,
        plan: Event | None = None,
        composition: Composition | None = None,
        bad_event_delta: float = 0.0,
        seeded: bool = False,
    ) -> None:
        composition = composition or ("zcdp" if plan is None else "plan")
        check_composition(composition)
        check_bad_event_delta(composition, budget, bad_event_delta)
        if (composition == "plan") is not (plan is not None):
            raise ValueError(
                f"got composition={composition!r} and {'no plan' if plan is None else 'a plan'}: a plan goes with "
                "composition='plan', and composition='gaussian', 'zcdp' or 'basic' with releases that are not declared."
            )
        self.budget = budget
        self.relation = Relation.parse(relation)
        self.composition: Composition = composition
        self.plan = plan
        self.bad_event_delta = float(bad_event_delta)
        self.entries: list[Entry] = []
        self.seeded = bool(seeded)
        self._root, self._lock = self, SpendLock()
        # Pays the same as this one; None for a block of a declared plan, which was paid for when it was drawn.
        self._above: Ledger | None = None
        self._blocks: Blocks | None = None  # set where the ledger above pays only for the dearest of several
        self._spent, self._lost = Cost(0.0), 0.0
        self._cap: Cost | None = None
        self._declared: DeclaredEvents | None = None
        if plan is not None:
            self._declared = DeclaredEvents(plan)
            self._require_affordable_plan()
        else:
            self._cap = filter_cap(composition, budget, self.bad_event_delta)

    # Charging ------------------------------------------------------------------------------------------------------

    def charge(self, name: str, event: Event, count: int = 1) -> None:
        """Pay for `count` releases of `event`, or refuse and record nothing.

        Args:
            name: what is released, for messages and reports.
            event: what one release costs.
            count: how many equal releases are paid for at once.

        Raises:
            BudgetExceeded: they would cost more than is left.
            PlanMismatch: the plan does not hold them (any more).
            NotPriceable: the filter's currency cannot price them.
        """
        whole = repeat(event, count)
        self._pay(name, whole, self._price(whole), line=(event, count))

    def affords(self, event: Event, count: int = 1) -> bool:
        """Whether `charge` would accept these releases. Adaptive solvers ask this before each step.

        Raises:
            NotPriceable: the filter's currency cannot price them.
        """
        whole = repeat(event, count)
        try:
            self._require("release", whole, self._price(whole))
        except (BudgetExceeded, PlanMismatch):
            return False
        return True

    def spend(self, name: str, event: Event, epsilon: float, delta: float) -> None:
        """Pay for a whole block of fixed events with its own epsilon and delta (composition "basic" only).

        Args:
            name: what the block is.
            event: its tree, fixed before the block begins; it must cost at most what is paid.
            epsilon: what is paid, chosen before the block begins.
            delta: likewise.

        Raises:
            BudgetExceeded: it would cost more than is left.
            ValueError: this is no basic filter, or the block costs more than `epsilon` at `delta`.
        """
        self._pay(name, event, self._block_cost(name, event, epsilon, delta), line=(event, 1))

    def affords_block(self, event: Event, epsilon: float, delta: float) -> bool:
        """Whether `spend` would accept this block."""
        try:
            self._require("block", event, self._block_cost("block", event, epsilon, delta))
        except BudgetExceeded:
            return False
        return True

    def sub_ledger(
        self, name: str, *, share: float | None = None, rho: float | None = None, plan: Event | None = None
    ) -> "Ledger":
        """Lend a part of the budget: every charge on it is also a charge on this ledger.

        Args:
            name: who borrows.
            share: its cap as a fraction of this ledger's cap (of what is left, where it has none of its own).
            rho: its cap in rho.
            plan: its part of a declared plan, which it may draw and nothing else.

        Raises:
            ValueError: not exactly one of the three was given, or it is not a part of this ledger.
        """
        if sum(part is not None for part in (share, rho, plan)) != 1:
            raise ValueError(
                f"give exactly one of share, rho and plan, got share={share!r}, rho={rho!r}, plan={plan!r}: "
                "a part is a fraction, an amount, or a piece of the declared plan."
            )
        if plan is not None and self.composition != "plan":
            raise ValueError("plan= divides a declared plan, but this is a filter: give share= or rho=.")
        part = self._below(DeclaredEvents(plan) if plan is not None else None)
        part._above, part.plan = self, plan
        part._cap = None if plan is not None else self._part_of_cap(share, rho)
        self.entries.append(Part(name, part.entries))
        return part

    def parallel(self, k: int, name: str = "blocks") -> "tuple[Ledger, ...]":
        """One ledger for each of `k` disjoint blocks of units; this ledger pays for the dearest.

        With a plan they are bound, branch by branch, to its next `Parallel` node, which is drawn at once.

        Args:
            k: how many blocks.
            name: what they are, for reports.

        Raises:
            PlanMismatch: the plan's next parallel node is missing or has not k branches.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k!r}: it is the number of blocks.")
        if self.composition == "plan":
            node = self._next_parallel(name, k)
            self._pay(name, node, self._price(node))
            ledgers = tuple(self._below(DeclaredEvents(branch)) for branch in node.events)
            for ledger, branch in zip(ledgers, node.events, strict=True):
                ledger.plan = branch
            self.entries.append(Blocks(name, tuple(ledger.entries for ledger in ledgers)))
            return ledgers
        ledgers = tuple(self._below(None) for _ in range(k))
        blocks = Blocks(name, tuple(ledger.entries for ledger in ledgers))
        for ledger in ledgers:
            ledger._above, ledger._blocks = self, blocks
        self.entries.append(blocks)
        return ledgers

    def gaussian_filter(self, name: str, event: Event) -> "Ledger":
        """Pay for one Gaussian release of noise multiplier z now; spend it on releases that are chosen as the run goes.

        Privacy:
            Whatever is released under a Gaussian filter of cap rho = 1 / (2 z^2), however it is chosen, is
            mu-Gaussian-DP with mu = 1 / z: dominated by the very pair that `event` is priced by. So this ledger may
            count it as that one release, with a plan or without; what is not used is not given back.
        Source: Smith, Thakurta 2022 (the filter); Zhu, Dong, Wang 2022 (composition of dominating pairs).
        """
        cap = filter_cost("gaussian", event, self.budget.epsilon)
        self._pay(name, event, self._price(event))
        part = self._below(None)
        part.composition, part._cap = "gaussian", cap
        self.entries.append(Filtered(name, event, part.entries))
        return part

    def restore(self, paid: Iterable[tuple[str, Event, Cost]]) -> None:
        """Enter charges that were paid before, whatever is left; every sum is rounded up."""
        for name, event, cost in paid:
            add_charge(self.entries, name, event, 1)
            self._spent = sum_of_costs((self._spent, cost))

    def mark_seeded(self) -> None:
        """Say that something paid here rests on a seed: of the whole ledger, and of this part of it."""
        self.seeded = self._root.seeded = True

    # Reading -----------------------------------------------------------------------------------------------------

    def epsilon(self, delta: float | None = None) -> float:
        """The guarantee: epsilon of the whole plan, or of the filter's cap, at `delta` (the budget's by default).

        A part or a block answers for the whole ledger.
        """
        root = self._root
        at_budget = delta is None or delta == root.budget.delta
        delta = root.budget.delta if delta is None else delta
        if root.plan is not None:
            near = root.budget.epsilon if at_budget and root.budget.is_private else None
            return accounting.epsilon(root._with_bad_events(root.plan), delta, root.relation, near=near)
        if at_budget:
            return root.budget.epsilon
        return filter_epsilon(root.composition, root._cap or Cost(math.inf), delta, root._aside)

    def delta(self, epsilon: float) -> float:
        """The guarantee read the other way: delta of the whole plan or cap at `epsilon`."""
        root = self._root
        if root.plan is not None:
            return accounting.delta(root._with_bad_events(root.plan), epsilon, root.relation)
        return filter_delta(root.composition, root._cap or Cost(math.inf), epsilon, root._aside)

    def spent_epsilon(self, delta: float | None = None) -> float:
        """What the releases charged here would cost, had exactly they been the plan. For reports: see the module."""
        delta = self.budget.delta if delta is None else delta
        if self.composition == "plan":
            near = self.budget.epsilon if self.budget.is_private else None
            return accounting.epsilon(self.spent_event(), delta, self.relation, near=near)
        return filter_epsilon(self.composition, self._spent, delta, self._aside)

    def spent_event(self) -> Event:
        """Everything that was charged, as a tree."""
        return entries_to_event(self.entries)

    @property
    def spent(self) -> float:
        """How much was spent, in the filter's currency; with a plan in rho, NaN where a release has no rho."""
        if self.composition != "plan":
            return self._spent.amount
        return or_nan(accounting.zcdp_rho(self.spent_event()))

    @property
    def remaining(self) -> float:
        """How much may still be spent, in the filter's currency; with a plan the undrawn rho, NaN where it has none."""
        own = math.inf if self._cap is None else self._cap.amount - self._spent.amount
        if self._declared is not None:
            own = min(own, or_nan(accounting.zcdp_rho(self._declared.undrawn())))
        if self._above is not None:
            above = self._above.remaining
            if self._blocks is not None:
                above += self._blocks.paid.amount - self._spent.amount
            own = own if math.isnan(above) else min(own, above)
        return max(0.0, own)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values: the budget, the plan, every entry, and the guarantee."""
        values: dict[str, Any] = {
            "budget": {"epsilon": json_number(self.budget.epsilon), "delta": self.budget.delta},
            "relation": self.relation.value,
            "composition": self.composition,
            "bad_event_delta": self.bad_event_delta,
            "guaranteed_epsilon": json_number(self.epsilon()),
            "plan": None if self.plan is None else self.plan.to_dict(),
            "entries": entries_to_list(self.entries),
        }
        return {"mark": SEEDED, **values} if self.seeded else values

    def __str__(self) -> str:
        head = f"{self.relation.value} differential privacy, {self.budget}, {KEPT_BY[self.composition]}"
        return "\n".join([*([SEEDED] if self.seeded else []), head, *entries_to_lines(self.entries)])

    def _pay(self, name: str, event: Event, cost: Cost, line: tuple[Event, int] | None = None) -> None:
        with self._root._lock:
            self._require(name, event, cost)
            self._commit(event, cost)
            if line is not None:
                add_charge(self.entries, name, *line)

    def _price(self, event: Event) -> Cost:
        """The cost in the ledger's currency; a declared plan was priced as a whole, so only a part's cap asks."""
        ledger: Ledger | None = self
        while ledger is not None:
            if ledger._cap is not None:
                return filter_cost(self.composition, event, self.budget.epsilon)
            ledger = ledger._above
        return Cost(0.0)

    def _require(self, name: str, event: Event, cost: Cost) -> None:
        if self._declared is not None:
            self._declared.require(name, event)
        if self._cap is not None:
            require_room(name, cost, self._spent, self._cap, self.composition)
        if self._above is not None:
            self._above._require(name, event, self._for_above(cost))

    def _commit(self, event: Event, cost: Cost) -> None:
        if self._declared is not None:
            self._declared.draw(event)
        for_above = self._for_above(cost)
        # Whoever pays for more comes first: an interruption in between counts too much, never too little.
        if self._above is not None:
            self._above._commit(event, for_above)
        if (blocks := self._blocks) is not None:
            blocks.paid = Cost(blocks.paid.amount + for_above.amount, blocks.paid.delta + for_above.delta)
        # Compensated summation (Neumaier): a million equal charges add up to the last digit.
        term = cost.amount + self._lost
        total = self._spent.amount + term
        self._lost = term - (total - self._spent.amount) if math.isfinite(total) else 0.0
        self._spent = Cost(total, self._spent.delta + cost.delta)

    def _for_above(self, cost: Cost) -> Cost:
        """What the ledger above pays: the same, or for a block as much as it is now dearer than every other block."""
        if self._blocks is None:
            return cost
        paid = self._blocks.paid
        return Cost(
            max(0.0, self._spent.amount + cost.amount - paid.amount) if paid.amount < math.inf else 0.0,
            max(0.0, self._spent.delta + cost.delta - paid.delta),
        )

    def _below(self, declared: DeclaredEvents | None) -> "Ledger":
        """An empty ledger with the same guarantee, for a part or a block."""
        ledger = object.__new__(Ledger)
        ledger.budget, ledger.relation, ledger.composition = self.budget, self.relation, self.composition
        ledger.plan, ledger.bad_event_delta, ledger.seeded = None, self.bad_event_delta, self.seeded
        ledger.entries, ledger._root, ledger._above, ledger._blocks = [], self._root, None, None
        ledger._spent, ledger._lost, ledger._cap, ledger._declared = Cost(0.0), 0.0, None, declared
        return ledger

    def _part_of_cap(self, share: float | None, rho: float | None) -> Cost:
        if rho is not None:
            if self.composition == "basic":
                raise ValueError("rho= is no amount of a basic filter, which adds up epsilons: give share=.")
            if not rho > 0:
                raise ValueError(f"rho must be positive, got {rho!r}: it is the part's cap.")
            return Cost(rho, math.inf)
        if share is None or not 0 < share <= 1:
            raise ValueError(
                f"share must be above 0 and at most 1, got {share!r}: it is a fraction of the budget."
            )
        whole = self._cap
        if whole is None:
            amount = self.remaining if self.plan is None else or_nan(accounting.zcdp_rho(self.plan))
            if math.isnan(amount):
                raise ValueError("this plan has no rho to take a share of: give the part its own plan=.")
            whole = Cost(amount, math.inf)
        return Cost(share * whole.amount, share * whole.delta if self.composition == "basic" else math.inf)

    def _next_parallel(self, name: str, k: int) -> Parallel:
        ledger: Ledger | None = self
        while ledger is not None and ledger._declared is None:
            ledger = ledger._above
        node = ledger._declared.next_parallel if ledger is not None and ledger._declared is not None else None
        if node is None or len(node.events) != k:
            planned = (
                "no parallel node is left in the plan"
                if node is None
                else f"it has {len(node.events)} branches"
            )
            raise PlanMismatch(
                f"{name!r} asked for {k} blocks, but {planned}. Declare Parallel with {k} branches."
            )
        return node

    def _block_cost(self, name: str, event: Event, epsilon: float, delta: float) -> Cost:
        if self.composition != "basic":
            raise ValueError(
                f"blocks with their own epsilon and delta are paid by composition='basic', this is "
                f"{self.composition!r}: use charge."
            )
        block = Budget(epsilon, delta)
        price = accounting.epsilon(event, block.delta, self.relation, near=block.epsilon)
        if price > block.epsilon * (1 + TOLERANCE):
            raise ValueError(
                f"{name!r} pays epsilon = {epsilon:.4g} at delta = {delta:.3g}, but its events cost {price:.4g}: "
                "calibrate them to what is paid."
            )
        return Cost(block.epsilon, block.delta)

    def _require_affordable_plan(self) -> None:
        price = self.epsilon()
        if price > self.budget.epsilon * (1 + TOLERANCE):
            cost = f"epsilon = {price:.4g}" if price < math.inf else "no finite epsilon"
            raise BudgetExceeded(
                f"the plan costs {cost} at delta = {self.budget.delta:.3g} under {self.relation.value}, but the "
                f"budget is {self.budget}. Release less often or raise the noise; `calibrate` finds the least "
                "noise that fits."
            )

    @property
    def _aside(self) -> SetAside:
        return SetAside(self.bad_event_delta, self.budget.epsilon)

    def _with_bad_events(self, event: Event) -> Event:
        return sequence((event, DeltaEvent(self.bad_event_delta) if self.bad_event_delta else NoEvent()))
