"""Test problems whose growth, constants and minimum are known: `zoo.power(p=4.0)`, `zoo.sine()`, ...

They are for studying solvers: whether a bound holds, how the excess falls with the number of units, what a wrong
constant does. See `ZooProblem` for what each of them knows about itself. `zoo.inventory()` is a black box: a policy
whose cost only a simulator knows.
"""

from privopt.zoo.kinks import max_linear, phase_retrieval
from privopt.zoo.linear_models import ball_logistic, leaky_link, least_squares, separable_logistic
from privopt.zoo.problem import Inventory, ZooProblem, inventory, tangent_kernel_floor, tangent_kernel_growth
from privopt.zoo.tilted import factorisation, power, sine, valley

__all__ = [
    "Inventory",
    "ZooProblem",
    "ball_logistic",
    "factorisation",
    "inventory",
    "leaky_link",
    "least_squares",
    "max_linear",
    "phase_retrieval",
    "power",
    "separable_logistic",
    "sine",
    "tangent_kernel_floor",
    "tangent_kernel_growth",
    "valley",
]
