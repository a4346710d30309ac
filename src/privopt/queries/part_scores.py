"""The scores of some of the vertices among those of all, for a private choice among them."""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from privopt.ledger.sampling import EveryUnit, Sampling
from privopt.public import Public
from privopt.queries.base import FunctionOfMean, Scalar, query, static


@query
class PartScores(FunctionOfMean):
    """Scores at some places of a held mean of scores, in order.

    A product of sets has the vertices of each of its parts apart, and one mean gradient serves the choices of all.

    Attributes:
        mean: held scores whose norm is the range, of `VertexScores`.
        places: (first, end) of each run of scores that are taken. Public.
    Privacy:
        Leaving out entries can only shrink the range (largest minus smallest entry) of the vector by which one unit
        moves the scores, so the sensitivity is that of the held scores, whose rounding it includes; taking entries
        rounds nothing.
    """

    norm: ClassVar[str] = "range"

    mean: Any = static()
    places: tuple[tuple[int, int], ...] = static()

    def value(self, private_mean: NDArray[np.float64]) -> NDArray[np.float64]:
        """The scores at the places."""
        return np.concatenate([private_mean[first:end] for first, end in self.places])

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """That of the held scores.

        Raises:
            TypeError: what is held does not bound the range.
        """
        del public, sampling
        if self.mean.norm != self.norm:
            raise TypeError(
                f"PartScores takes scores whose range is bounded, and {self.mean.query.name} is held, bounded in the "
                f"{self.mean.norm} norm: hold VertexScores."
            )
        return self.mean.sensitivity

    def shape(self, public: Public) -> tuple[int, ...]:
        """One score a vertex."""
        del public
        return (sum(end - first for first, end in self.places),)
