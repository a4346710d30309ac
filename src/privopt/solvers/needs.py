"""What a program needs of a problem: each requirement refuses in one sentence what does not meet it."""

import abc
from dataclasses import dataclass
from typing import Any

from privopt.problems.constraints import Unconstrained
from privopt.problems.glm import GLMLoss
from privopt.problems.regularisers import NoRegulariser, Ridge
from privopt.public import Public


@dataclass(frozen=True)
class Need(abc.ABC):
    """A requirement of a class of programs.

    Attributes:
        sentence: why the program does not solve a problem that is otherwise; the end of "cannot solve this problem:".
    """

    sentence: str

    @abc.abstractmethod
    def is_met(self, problem: Any, public: Public) -> bool:
        """Whether a problem on such data meets it."""

    def refusal(self, program: Any, problem: Any, public: Public) -> str | None:
        """The sentence, or None where it is met."""
        del program
        return None if self.is_met(problem, public) else self.sentence


class NoSet(Need):
    """No constraint set."""

    def is_met(self, problem: Any, public: Public) -> bool:
        del public
        return isinstance(problem.constraint, Unconstrained)


class SmoothPenalty(Need):
    """A penalty that has a gradient, or none."""

    def is_met(self, problem: Any, public: Public) -> bool:
        del public
        return problem.regulariser.is_smooth


class StrongPenalty(Need):
    """A ridge on every coordinate, and no other penalty."""

    def is_met(self, problem: Any, public: Public) -> bool:
        del public
        return problem.regulariser.is_smooth and problem.regulariser.strong_convexity > 0.0


class RidgeAtMost(Need):
    """A ridge or no penalty."""

    def is_met(self, problem: Any, public: Public) -> bool:
        del public
        return isinstance(problem.regulariser, Ridge | NoRegulariser)


class GeneralisedLinear(Need):
    """A loss of the predictions, which are products of parameters and features."""

    def is_met(self, problem: Any, public: Public) -> bool:
        del public
        return isinstance(problem.loss, GLMLoss)


class Users(Need):
    """Units that are users, who may have several records."""

    def is_met(self, problem: Any, public: Public) -> bool:
        del problem
        return public.by_user


@dataclass(frozen=True, kw_only=True)
class FewFeatures(Need):
    """A second moment that fits in memory and can be decomposed.

    Attributes:
        most: features.
    """

    most: int
    sentence: str = "the second moment of {d} features has {entries:,} entries (limit: {most} features)"

    def is_met(self, problem: Any, public: Public) -> bool:
        del problem
        return public.d <= self.most

    def refusal(self, program: Any, problem: Any, public: Public) -> str | None:
        """See `Need.refusal`."""
        said = super().refusal(program, problem, public)
        return said and said.format(d=public.d, entries=public.d**2, most=self.most)
