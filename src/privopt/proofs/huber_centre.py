"""Why the Huber centre of points is stable where many of them lie close together, and how a score certifies it.

Points y_1, ..., y_K, a radius c, clip_c(v) = v min(1, c / |v|), and

    G_D(u) = sum_j clip_c(u - y_j),   the gradient of a convex function whose gradient is K-Lipschitz.

u_D is any point with |G_D(u_D)| <= kappa c, kappa = `TOLERANCE`. A neighbour D' replaces one point, and then a = 2 +
2 kappa; or adds or removes one, and then a = 1 + 2 kappa. d_(i) is the i-th smallest |y_j - u_D|.

**Lemma H.** If N points of D lie within b < c of u_D and N (c - b) > a c, then |u_D - u_D'| <= a c / N for every
neighbour D'.

*Proof.* Let v = u_D', s* = |v - u_D|, e the unit vector from u_D to v and g(s) = <G_D(u_D + s e), e>, which does not
decrease, by convexity. g(0) >= -kappa c. For s <= c - b each of the N points is closer than c to u_D + s e, so its
term is u_D + s e - y_j and grows at rate 1 along e; the other terms do not decrease: g(s) >= g(0) + N s. And g(s*) <=
|G_D(v)| <= |G_D'(v)| + (a - 2 kappa) c <= (a - kappa) c, as replacing a point changes one term, by at most 2 c, and
adding or removing one changes the sum by at most c. If s* > c - b, then N (c - b) <= g(c - b) - g(0) <= g(s*) - g(0)
<= a c, against the assumption. So s* <= c - b, and N s* <= g(s*) - g(0) <= a c.

**The score.** For a public N0 and l = 0, 1, ...: N(l) = N0 + l and b(l) = b_0 - a c sum_{i = 1..l} 1 / (N0 + i), b_0
= 0.95 c.

    f(D) = max { l >= 1 : d_(N0 + l) <= b(l) },  0 if there is none.

**Lemma F.** f moves by at most 1, and f(D) >= 1 implies |u_D - u_D'| <= a c / (N0 + 1) for every neighbour D'.

*Proof.* Let l = f(D) >= 1. N(l) (c - b(l)) >= 0.05 c N(l) + N(l) a c sum_i 1 / (N0 + i) > a c, since the last term of
the sum is 1 / N(l). Lemma H with N = N(l): the centre moves by at most a c / N(l) <= a c / (N0 + 1). At least N(l) -
1 of those points are in D', and within b(l) + a c / N(l) = b(l - 1) of u_D'. So f(D') >= l - 1; and the roles may be
exchanged.

**Lemma T.** On secret samples a unit enters, leaves or is replaced. Under replace-one the score takes a = 2.04 there,
no less than any of the three moves the gradient by, so that Lemma F holds for each of them; a' = 1.02 is what entering
or leaving takes. Let N0 >= 21 and S, S + y, S + y' be the samples without the unit, with it, and with what replaces it.
If f >= 1 on *one of the three*, then |u_S - u_(S + y)| and |u_S - u_(S + y')| are at most a' c / N0, and |u_(S + y) -
u_(S + y')| is at most 2 a' c / N0.

*Proof.* If f(S) >= 1, Lemma H for S with N >= N0 + 1 gives a' c / (N0 + 1) for both. If f(S + y) >= 1, Lemma H for S +
y gives it for S + y and S; and as in the proof of Lemma F at least N0 points of S are within b_0 of u_S. Now N0 (c -
b_0) = 0.05 N0 c > a' c as N0 >= 21: Lemma H for S with N = N0 and b = b_0 gives a' c / N0 for S and S + y'. Likewise
with y and y' exchanged. The last bound is the sum of the two.

The scores of S and S + y' may both be 0 there: a wrong pass is one where f is 0 on *all three*, see
`ledger.privacy_losses`, and Delta = a c / N0 = 2 a' c / N0. Where units are added or removed there are S and S + y
only, and a = a'.

**The solver cannot fail where it matters.** Let N0 > K / 2 and let D or a neighbour have f >= 1. By the lemmas at
least N0 points of D lie within b_0 of a minimiser mu. Of 64 points of D, chosen at random, one is such a point except
with probability 2^-64 (K <= 64: all are tried). It has N0 points within 2 b_0, so the candidate with the smallest
N0-th nearest distance has N0 points within 2 b_0 too; N0 > K / 2 makes one of them lie within b_0 of mu: the start is
within 3 b_0 < 3 c of mu. From there u <- u - G(u) / K, s = |u - mu|, theta = N0 / K: <G(u), u - mu> >= N0 s min(s, c
- b_0) as in Lemma H, and <G(u), u - mu> >= |G(u)|^2 / K since the gradient is K-Lipschitz, so

    |u - G / K - mu|^2 <= s^2 - <G, u - mu> / K <= s^2 - theta s min(s, 0.05 c).

While s > 0.05 c a step shortens s by at least 0.025 theta c: at most 120 / theta steps. Afterwards s^2 falls by the
factor 1 - theta, and |G| <= K s <= kappa c / 2 after 2 ln(0.1 K / kappa) / -ln(1 - theta) steps more. These numbers
are public; a residual above kappa c / 2 after them makes f zero on both data sets. The other half of kappa is left
for rounding: the lemmas hold for the residual and the distances as computed.

**Number of points that is private.** Under add-or-remove-one N0 > K / 2 must hold for the actual K. min(f, max(0, 2
N0 - 1 - K)) moves by at most 1 as well, and is 0 where the solver might fail.

Source:
    Ours. The setting is Lowy, Liu, Asi 2024, section 2; Huber 1964 (location); Dwork, Lei 2009
    (propose-test-release).
"""

import math

import numpy as np
from numpy.typing import NDArray

TOLERANCE = 0.01  # kappa
EDGE = 0.95  # b_0 / c
CANDIDATES = 64
LEAST_OF_SAMPLE = 21  # N0 on a secret sample, see Lemma T
_START = 3.0  # distance of the start from a minimiser, in radii


def movement(*, replaced: bool, sampled: bool = False) -> float:
    """a: how far a neighbour and two residuals move the gradient, in radii.

    On a secret sample a unit may enter, leave or be replaced. The price of a release on one under replace-one takes
    entering to move it by half of what is stated, so a is then twice that of a point that is added.
    """
    if sampled:
        return (2.0 if replaced else 1.0) * movement(replaced=False)
    return (2.0 if replaced else 1.0) + 2.0 * TOLERANCE


def inner_radii(most: int, least: int, *, replaced: bool, sampled: bool = False) -> NDArray[np.float64]:
    """b(0), ..., b(most) in radii.

    Args:
        most: the largest l.
        least: N0.
        replaced: whether a neighbour replaces a point.
        sampled: whether the points are a secret sample.
    """
    steps = 1.0 / (least + np.arange(1.0, most + 1.0))
    return EDGE - movement(replaced=replaced, sampled=sampled) * np.concatenate([[0.0], np.cumsum(steps)])


def centre_shift(least: int, *, replaced: bool, sampled: bool = False) -> float:
    """Delta: how far the centre moves, in radii, where the score is at least 1.

    Raises:
        ValueError: the points are a secret sample and N0 is below `LEAST_OF_SAMPLE`.
    """
    if sampled and least < LEAST_OF_SAMPLE:
        raise ValueError(
            f"on a secret sample at least {LEAST_OF_SAMPLE} points must be close to the centre, got least = {least}: "
            "sample at a higher rate, or hold points without `sample`."
        )
    return movement(replaced=replaced, sampled=sampled) / (least if sampled else least + 1)


def descent_steps(least: int, most: int) -> int:
    """Gradient steps after which the residual is small enough wherever that matters; a public number.

    Args:
        least: N0.
        most: the largest number of points for which N0 is more than half, or the largest there can be.
    """
    share = min(least / most, 1.0 - 1e-3)
    near = 2.0 * math.log(0.1 * most / TOLERANCE) / -math.log1p(-share)
    return math.ceil(_START / (0.5 * (1.0 - EDGE) * share)) + math.ceil(near) + 8
