"""Queries of all the records at once, which are no means over units; their classes argue their sensitivities.

They see records, not which user owns them: the curator refuses them where a unit is a user.

    RecordsQuery       a function of the rows
    ObjectiveQuery     a function of sums over the rows: gradients of one objective, and its Hessians
    ArgminQuery        a minimiser of one objective whose noise sits inside it
    PassQuery          the end of one pass over the rows, in a secret order
"""

import abc
from collections.abc import Callable
from typing import Any

from privopt.proofs.huberised_objective import HuberisedObjective
from privopt.proofs.huberised_sum import LossSum
from privopt.public import Public
from privopt.queries.base import Query


class RecordsQuery(Query):
    """A function of all the rows, which whoever computes it must hold at once."""

    @abc.abstractmethod
    def value(self, public: Public, private_features: Any, private_targets: Any) -> Any:
        """The value, from the stored rows and targets.

        There may be fewer of them than `public.n`, and where a unit may be added or removed their number is private: a
        mean divides by `public.n`.
        """


class ObjectiveQuery(Query):
    """A function of an objective over all the records, such as the end of an optimisation.

    It asks for gradients, Hessians and their products at points of its own choice, never for rows: whoever holds the
    rows adds up its own. What it asks depends on the data, as do the answers: both are private.
    """

    @abc.abstractmethod
    def objective(self, public: Public) -> HuberisedObjective:
        """The objective, from public numbers."""

    @abc.abstractmethod
    def value(self, public: Public, private_sum: LossSum) -> Any:
        """The value, from the sum over the records.

        There may be fewer of them than `public.n`, and where a unit may be added or removed their number is private: a
        mean divides by `public.n`.
        """


class ArgminQuery(Query):
    """A minimiser with noise inside its objective; the mechanism receives it as a function of the noise.

    Its inner iteration count depends on data: the one documented exception to "no loop count depends on data".
    """

    def require_mechanism(self, mechanism: Any, public: Public) -> None:
        """Refuse a mechanism whose price does not cover this query, from public numbers; by default, every one.

        Raises:
            ValueError: the mechanism was not made for this query and these public numbers.
        """
        del public
        raise ValueError(
            f"{self.name} cannot be released by {type(mechanism).__name__}: what noise inside an objective costs "
            "depends on the objective, so use the mechanism that the query makes."
        )

    @abc.abstractmethod
    def objective(self, public: Public) -> HuberisedObjective:
        """The objective, from public numbers; asked for as an `ObjectiveQuery` asks."""

    @abc.abstractmethod
    def minimise(self, public: Public, private_sum: LossSum, noise: Any, tolerance: float) -> Any:
        """The minimiser of the perturbed objective, to a residual of at most `tolerance`."""

    @abc.abstractmethod
    def implied_noise(self, public: Public, private_sum: LossSum, solution: Any) -> Any:
        """The noise under which `solution` is the minimiser: the inverse map, which the audit compares."""


class PassQuery(Query):
    """The end of one pass over the records, in a secret order, with noise at its steps or at its end.

    A record's place must not depend on who else is there: the query itself refuses add-or-remove-one.
    """

    @abc.abstractmethod
    def require_mechanism(self, mechanism: Any, public: Public) -> None:
        """Refuse a mechanism that does not draw what this pass needs, from public numbers.

        Raises:
            ValueError: the mechanism was not made for this query and these public numbers.
        """

    @abc.abstractmethod
    def follow(
        self,
        public: Public,
        private_features: Any,
        private_targets: Any,
        order: Any,
        draw: Callable[[int], Any],
    ) -> Any:
        """The end of the pass.

        Args:
            public: of the records; position i of `order` is a record for i below their number, and absent from there.
            private_features: the stored rows.
            private_targets: likewise.
            order: a permutation of 0, ..., n - 1.
            draw: the noise of the next so many steps, a row a step.
        """

    @abc.abstractmethod
    def moved(
        self, public: Public, private_left: Any, private_right: Any, order: Any, draw: Callable[[int], Any]
    ) -> float:
        """What the sensitivity bounds, for two data sets (features, targets): for the audit."""
