"""How stationary a point is, for those who hold the data: not private, for study and for tests.

`goldstein` bounds the Goldstein norm of a function at a point from its gradients, `goldstein_of_values` estimates it
from values alone. Nothing here adds noise. A run's private certificates are in its findings, see
`privopt.planning.goldstein_certificate`.
"""

from privopt.certify.goldstein_norm import GoldsteinNorm, goldstein, goldstein_of_values

__all__ = ["GoldsteinNorm", "goldstein", "goldstein_of_values"]
