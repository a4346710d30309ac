"""Private SVRG++: variance-reduced descent whose epochs double in length, for problems without strong convexity.

Source: Wang, Ye, Xu 2017, Algorithm 2 (DP-SVRG++), repaired; Allen-Zhu, Yuan 2016.
"""

from dataclasses import dataclass
from typing import ClassVar

from privopt.ledger.amounts import Budget
from privopt.planning.svrg import SVRGSetting, plus_plus_setting
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.solvers.svrg import SVRG


@dataclass(frozen=True, kw_only=True)
class SVRGPlusPlus(SVRG):
    """Private SVRG++: epoch s has 2^(s+1) m inner steps and starts from the last iterate, not from the snapshot.

    Attributes:
        inner_steps: m; epochs have 2 m, 4 m, 8 m, ... inner steps, (2^(E+1) - 2) m in all.
    Guarantee:
        That of `SVRG`: E Gaussian releases and (2^(E+1) - 2) m sampled ones, priced as one tree.
    Differs from the paper:
        As `SVRG` does. Its theorem counts 2^T m noisy steps where the algorithm makes (2^(T+1) - 2) m, and its
        m = Theta(L) is a count set to a curvature; here every step is counted, and m is a small number of steps.
    Source:
        Wang, Ye, Xu 2017, Algorithm 2.
    """

    snapshot_growth: float = 2.0

    doubling: ClassVar[bool] = True
    carry_last: ClassVar[bool] = True
    fewest_steps: ClassVar[int] = 5

    @property
    def name(self) -> str:
        """The solver's name."""
        return "svrg-plus-plus"

    def setting(self, problem: Problem, public: Public, budget: Budget) -> SVRGSetting:
        """The practical setting for what was left open."""
        return plus_plus_setting(problem, public, budget, clip=self.clip)
