"""Curators that answer for a problem of the zoo at any nominal n, so that n = 10^6 costs no more than n = 100.

They add the noise that a curator would add, by the sensitivity that a curator would state. `ExactCurator` answers from
the formula of the objective. Clips of gradients must not bind on any record, which the formula cannot tell apart; the
curator raises if one might. Clips of differences may: the records' differences are all the same. `TiledCurator` answers
from one round of the table of records that the others are copies of; any clip may bind.
"""

import math
from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from privopt.curator.dry_run import Dataless
from privopt.curator.local import LocalCurator
from privopt.curator.transcript import Transcript
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.public import Public, Relation
from privopt.queries.slopes import ClippedGradient, ClippedGradientDifference


class ClipMightBind(AssertionError):
    """A record's gradient may be longer than the clip, so that the formula of the mean is not the clipped mean."""


class ExactCurator(Dataless):
    """Answers gradient queries about a `ZooProblem` of `n` units by its formula plus the mechanism's noise.

    Args:
        zoo: the problem, with `shared_gradient`.
        public: see `public_of`.
        ledger: the budget.
        noise: a `NoiseSource`, or a `FormulaNoise`.
        bind: let clips of gradients bind as if all records were alike; for runs that leave the region by design.
    """

    def __init__(self, zoo, public, ledger, *, noise=None, bind=False, transcript=None):
        assert zoo.shared_gradient, f"{zoo.name}: use a curator on its records."
        self._zoo, self._noise, self._bind = zoo, NoiseSource() if noise is None else noise, bind
        seeded = Transcript(public.relation, seeded=True)
        super().__init__(public, ledger, seeded if transcript is None else transcript)

    def _child(self, public, ledger):
        return ExactCurator(
            self._zoo, public, ledger, noise=self._noise, bind=self._bind, transcript=self.transcript
        )

    def _mapped_units(self, row_map, row_bound):
        raise TypeError("the records of this problem are not rows of a linear model: there is no view.")

    def _answer(self, query, mechanism, sampling, sensitivity):
        del sampling
        return mechanism.release(self._noise, np.asarray(self._mean(query)), float(sensitivity))

    def _draw_public_seed(self, name):
        return 0

    def _open_stream(self, name, mechanism, shape):
        raise TypeError(f"no formula for {name}.")

    def _answer_stream(self, request, state):
        raise TypeError("no stream is open.")

    def _mean(self, query):
        if isinstance(query, ClippedGradient):  # and its norm
            return query.finish(jnp.asarray(self._gradient(query.at, query.clip)))
        if isinstance(query, ClippedGradientDifference):
            return self._change(query.at, query.anchor, query.radius(), query.gradient_clip)
        if query.name == "MixedGradient":
            gain = float(query.gain)
            fresh = self._gradient(query.at, query.clip) if gain < 1.0 else 0.0
            change = self._change(query.at, query.previous, query.change_clip, np.inf)
            return (1.0 - gain) * fresh + gain * change
        raise TypeError(f"no formula for {query.name}.")

    def _gradient(self, at, clip):
        """The mean gradient, whose clips must not bind: a record's gradient is that of the mean plus the record."""
        exact = self._zoo.gradient(at)
        longest = math.hypot(*exact) + self._zoo.row_bound
        if longest > float(clip) * (1 + 1e-6) and math.isfinite(longest):
            if not self._bind:
                raise ClipMightBind(
                    f"{self._zoo.name}: a gradient of norm {longest:.6g}, a clip of {clip:.6g}."
                )
            return _clipped(exact, clip)
        return exact if np.all(np.isfinite(exact)) else np.zeros_like(exact)

    def _change(self, at, anchor, radius, gradient_clip):
        """The mean difference, clipped: every record's is the same."""
        if np.isfinite(gradient_clip):
            moved = self._gradient(at, gradient_clip) - self._gradient(anchor, gradient_clip)
        else:
            moved = self._zoo.gradient(at) - self._zoo.gradient(anchor)
        return _clipped(moved, radius)


def _clipped(vector, radius):
    """What `clip_to_ball` does, without JAX, which costs more to call than this to compute."""
    length, aim = math.hypot(*vector), float(radius) * (1 - 1e-9)
    if not math.isfinite(length):
        return np.zeros_like(vector)
    return vector if length <= aim else vector * (aim / length)


class _TiledEngine(InProcessEngine):
    """Sums over a round of records, counted as often as makes n of them."""

    def __init__(self, units, n):
        super().__init__(units)
        self._copies = n / units.public.n
        self._nominal = replace(units.public, n=n)

    @property
    def public(self):
        return self._nominal

    def clipped_sum(self, query, private_draw=None):
        return self._copies * super().clipped_sum(query, private_draw)


class TiledCurator(LocalCurator):
    """A curator of n records that are copies of those in `units`; the answers are those of the whole."""

    def __init__(self, units, ledger, *, n, noise=None, transcript=None):
        super().__init__(_TiledEngine(units, n), ledger, noise=noise, transcript=transcript)

    def _child(self, private_engine, ledger):
        assert private_engine is self.private_engine, "one round of the records cannot be split or mapped."
        return TiledCurator(
            private_engine.units, ledger, n=self.public.n, noise=self._noise, transcript=self.transcript
        )


def exact_curator_on(zoo, n, ledger, *, noise=None, relation="replace-one", bind=False):
    """The curator on n units of the problem: by formula where there is one, else on the table of its records."""
    if zoo.shared_gradient:
        return ExactCurator(zoo, public_of(zoo, n, relation), ledger, noise=noise, bind=bind)
    units = Units.from_arrays(
        *zoo.records(zoo.round), relation=relation, row_bound=zoo.row_bound, n=zoo.round, storage="float64"
    )
    return TiledCurator(units, ledger, n=n, noise=noise)


def public_of(zoo, n, relation="replace-one"):
    """What is public about n units of the problem."""
    return Public(n=n, d=zoo.d, relation=Relation.parse(relation), row_bound=zoo.row_bound)


def exact_run(solver, zoo, n, *, budget=None, noise=None, relation="replace-one", start=None, bind=False):
    """The result of a solver on n units of a problem of the zoo, and the excess of its parameters.

    Args:
        solver: configured for `budget` where fields are open.
        zoo: the problem.
        n: the nominal number of units.
        budget: default: large enough for whatever the configured solver declares.
        noise: a seed, a noise source, or None for secret noise.
        start: default: the problem's own.
        bind: see `ExactCurator`.
    """
    public = public_of(zoo, n, relation)
    budget = Budget(1e9, 1e-6) if budget is None else budget
    solver = solver.configure(Instance(zoo.problem, public, budget))
    ledger = Ledger(budget, relation, plan=solver.event(public))
    source = NoiseSource(noise) if noise is None or isinstance(noise, int) else noise
    curator = exact_curator_on(zoo, n, ledger, noise=source, relation=relation, bind=bind)
    with double_precision():
        result = solver.solve(curator, zoo.problem, jnp.asarray(zoo.start if start is None else start, float))
    return result, zoo.excess(result.params)
