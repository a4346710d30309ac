"""What tests on secret samples cost, with Gaussian releases on the samples that pass.

The mechanism, T times at most: draw a Poisson sample of rate g; ask a sparse vector whether a statistic of the sample
reaches a threshold; stop if it does not; else release a mean of the *same* sample with Gaussian noise. One noise xi on
the threshold, drawn before the first test, serves all of them.

That a test passed says something about who was drawn, so given the answers a unit is in the sample with another
probability than g: neither the product of a pure event and of T sampled Gaussians, nor amplification of the Gaussians
alone, is a bound. With eps_a for the threshold, eps_b for the tests, e1 = eps_a + eps_b and

    g' = g e^(eps_b / 2) / (1 + g (e^(eps_b / 2) - 1)),

the price is delta(eps) = e^e1 delta_sub(eps - e1) for eps >= e1, delta_sub the curve of T Gaussians on Poisson samples
of rate g', together with everything else that is released on the same units. Bad events are added once, outside.

**Proof.** Let u be the unit in which D and D' differ, S the others that were drawn in a step, p0 and p1 the
probabilities with which the test passes at the threshold xi without and with u in the sample, N0 and N1 the laws of the
Gaussian release; a prime marks D' at the threshold xi - 1. A statistic that moves by 1 at most when u enters, leaves or
is replaced, and noise Lap(2 / eps_b), give

    p1 <= e^(eps_b / 2) p0,   p0' >= p0,   p1' >= p1,   and failures of D at most e^eps_b as likely as those of D'.

Given S, "passes and releases in B" has under D the mass (1 - g) p0 N0(B) + g p1 N1(B) = w ((1 - a) N0 + a N1)(B) with
w = (1 - g) p0 + g p1 and a = g p1 / w <= g'; under D', where u is replaced, at least w ((1 - a) N0 + a N1')(B). That is
the same weight w on both sides and a pair of sampled Gaussians of rate a: a mixture of the pair of rate g' and of two
equal laws, hence dominated by it. Averaging over S with equal weights keeps that. (u absent from D': at least w N0(B).
u absent from D: at least p0 ((1 - g) N0 + g N1')(B) against p0 N0(B).) So at a fixed xi the run on D is a process A,
that on D' is at least e^-eps_b times a process B, the factor for at most one failure, and A and B are adaptive
compositions of dominated pairs: A(E) <= e^(eps - e1) B(E) + delta_sub(eps - e1). The density of xi at xi - 1 costs
e^eps_a:

    P(E) <= e^eps_a (e^(eps - e1) e^eps_b P'(E) + delta_sub(eps - e1)) <= e^eps P'(E) + e^e1 delta_sub(eps - e1).

Where the Gaussian's sensitivity holds only if a score of a sample is at least 1, S is called unsafe if the score is 0
on S, S + u and S + u' alike, u' what replaces u. That is the same for D and D', so what passes at an unsafe S is left
out of both processes, p0 = p1 = p0' = p1' = 0 there, and the above holds for the rest. Left out of P is at most the
probability of a wrong pass, the bad event; leaving out makes P' smaller. On every other S all three distances must be
covered, that of S and S + u' too where the score is 0 on both: see Lemma T in `proofs.huber_centre`.

Several such vectors have independent thresholds: the factors multiply, so e1 adds up, and their Gaussians compose.
Other releases on the same units are further steps of A and B.

Source:
    Lowy, Liu, Asi 2024, Theorem C.1, whose proof amplifies the Gaussians alone, given the answers; the repair is ours.
"""

import math

from privopt.ledger.composition import Alternative
from privopt.ledger.events import Event, GaussianEvent, SampledEvent, TestedSampleEvent
from privopt.ledger.sampling import Poisson


def inflated_rate(rate: float, epsilon_queries: float) -> float:
    """g', the largest probability of a unit to be in a sample, given that the test on it passed.

    Args:
        rate: g, with which the sample was drawn.
        epsilon_queries: eps_b, spent on the tests' noise.
    """
    grown = rate * math.exp(epsilon_queries / 2)
    return grown / (grown + (1.0 - rate))


def untested(way: Alternative) -> tuple[Alternative, float] | None:
    """The same releases with sampled Gaussians of the inflated rate in place of tested samples, and e1.

    Args:
        way: what one unit meets.
    Returns:
        None where no sample was tested.
    """
    tested = {leaf: count for leaf, count in way.counted.items() if isinstance(leaf, TestedSampleEvent)}
    if not tested:
        return None
    others: dict[Event, int] = {leaf: count for leaf, count in way.counted.items() if leaf not in tested}
    shift, mu_squared = 0.0, way.mu_squared
    for leaf, count in tested.items():
        shift += count * (leaf.epsilon_threshold + leaf.epsilon_queries)
        rate, releases = inflated_rate(leaf.rate, leaf.epsilon_queries), count * leaf.tests
        if rate >= 1.0:
            mu_squared += releases / leaf.noise_multiplier**2
        else:
            sampled = SampledEvent(Poisson(rate), GaussianEvent(leaf.noise_multiplier))
            others[sampled] = others.get(sampled, 0) + releases
    return Alternative(mu_squared, frozenset(others.items()), 0.0, way.private), shift
