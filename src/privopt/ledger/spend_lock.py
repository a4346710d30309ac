"""What a budget is paid from: one thread at a time, in the process that opened it, and never from a copy."""

import threading
from typing import Any, Never, Self

from privopt.errors import BudgetExceeded
from privopt.process import this_process


class SpendLock:
    """A lock around check and payment that a forked child cannot open: a copied budget would be spent twice."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._process = this_process()

    def __enter__(self) -> Self:
        if this_process() != self._process:
            raise BudgetExceeded(
                "this budget was opened in another process, where a forked child's payments do not show: open a "
                "budget in the process that spends it."
            )
        self._lock.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self._lock.release()


class NotCopyable:
    """Neither pickled nor copied."""

    def __reduce_ex__(self, protocol: Any) -> Never:
        raise TypeError(
            "a ledger cannot be pickled or copied: the copy could spend its budget again. Pass the ledger itself on, "
            "or store ledger.to_dict() for the record."
        )
