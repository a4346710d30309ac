"""Our own exceptions.

    PrivoptError
    ├── BudgetExceeded      a release would cost more than is left; nothing was read
    ├── PlanMismatch        a release that the declared plan does not hold; nothing was read
    ├── NotPriceable        no accountant can price this event under this relation
    └── ReplayMismatch      a replayed solver asked for something that was not recorded

Wrong arguments raise `ValueError` or `TypeError`. A message never carries a data value or a private count.
"""


class PrivoptError(Exception):
    """The root of privopt's own exceptions."""


class BudgetExceeded(PrivoptError):
    """A release was refused because it would overspend the budget. No data has been read for it."""


class PlanMismatch(PrivoptError):
    """A release was refused because the plan that was priced beforehand does not hold it."""


class NotPriceable(PrivoptError, ValueError):
    """No accountant can price this event under this neighbouring relation."""


class ReplayMismatch(PrivoptError):
    """A replayed solver asked for a release other than the recorded one: it is not post-processing."""
