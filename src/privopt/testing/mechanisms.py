"""The contract of a mechanism: a value of one price, noise of its own for every release, in the amount that is paid."""

import copy
import math
import pickle
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from privopt.later import jnp
from privopt.ledger import accounting
from privopt.ledger.events import Event, GaussianEvent, LaplaceEvent, NonPrivateEvent
from privopt.mechanisms.base import HiddenState, Mechanism, StreamMechanism
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import in_float64
from privopt.public import Relation
from privopt.testing.toy_data import ContractViolation, Rule

Released: TypeAlias = NDArray[np.float64]
_SURE = 1e-9  # chance that a sound mechanism is accused, in each of a few tests
_EPSILONS = (0.0, 0.1, 0.3, 1.0, 2.0, 4.0)


def check_mechanism(
    mechanism: Mechanism | StreamMechanism,
    *,
    relation: Relation | str = Relation.REPLACE_ONE,
    draws: int = 4000,
    seed: int = 0,
) -> None:
    """Hold a mechanism to its promises: price, noise, guards, and the same number on host and in a compiled loop.

    The price is held to what releases show: the spread of the noise where the event names it, and for every event the
    chance of a threshold on two values that are as far apart as the sensitivity allows. This finds noise that is off by
    a factor, not by a percent.

    Args:
        mechanism: acts on an array, as `Gaussian` does, or opens a stream, as `PrefixSum` does. Those that only the
            query that made them is released by (`ArgminQuery`, `PassQuery`) are checked with it, by `check_query`.
        relation: under which the event is priced.
        draws: how many releases are looked at for the price.
        seed: of their noise. With another one other noise is drawn.
    Raises:
        ContractViolation: which names the promise that was broken.
    """
    again = f"check_mechanism(mechanism, draws={draws}, seed={seed})"
    with in_float64():
        event = _require_value(mechanism, again)
        if isinstance(mechanism, StreamMechanism):
            _require_hidden(mechanism, seed, again)
            return
        trial = _Trial(mechanism, event, Relation.parse(relation), seed, again)
        trial.require_shape()
        trial.require_guards()
        if event == NonPrivateEvent():
            return
        trial.require_fresh()
        trial.require_scaling()
        trial.require_paths()
        trial.require_amount(draws)


def _require_value(mechanism: Mechanism | StreamMechanism, again: str) -> Event:
    """Hashable, in a norm that there is, and of one price, as is its copy."""

    def violated(what: str) -> ContractViolation:
        return ContractViolation(Rule.VALUE, mechanism, what, case="itself", repeat=again)

    event = mechanism.event()
    if not isinstance(cast(object, event), Event):
        raise violated(f"`event` gives a {type(event).__name__}, and only events can be priced")
    try:
        hash(mechanism)
        twin = copy.copy(mechanism)
    except TypeError as error:
        raise violated("it has no hash, or no copy: make it a frozen dataclass of numbers") from error
    if twin.event() != event or mechanism.event() != event:
        raise violated("asked again, it has another price, or its copy has: make it a frozen dataclass")
    if mechanism.norm not in ("l1", "l2", "range"):
        raise violated(f"`norm` is {mechanism.norm!r}, and a sensitivity is in 'l1', 'l2' or 'range'")
    return event


@dataclass(frozen=True)
class _Trial:
    """A mechanism on made-up values."""

    mechanism: Mechanism
    event: Event
    relation: Relation
    seed: int
    again: str

    def violated(self, rule: Rule, what: str, case: str) -> ContractViolation:
        return ContractViolation(rule, self.mechanism, what, case=case, repeat=self.again)

    @property
    def selects(self) -> bool:
        """Whether scores are chosen among."""
        return self.mechanism.norm == "range"

    def value(self, *, moved: float = 0.0, size: int = 3, place: int = 0) -> Released:
        """A value of zeros, or one that is as far from it as one unit of sensitivity allows."""
        value = np.zeros(max(size, 2) if self.selects else size)
        value[place] = moved
        return value

    def release(self, noise: Any, value: Released, sensitivity: float = 1.0) -> Released:
        return np.asarray(self.mechanism.release(noise, value, sensitivity), np.float64)

    def require_guards(self) -> None:
        """No noise can match a sensitivity that is negative or not a number, or infinite where there is noise."""
        refused = [-1.0, math.nan] + [math.inf] * (self.event != NonPrivateEvent())
        for sensitivity in refused:
            try:
                self.release(NoiseSource(self.seed), self.value(), sensitivity)
            except ValueError:
                continue
            what = f"it releases a value whose sensitivity is {sensitivity}"
            raise self.violated(Rule.GUARDS, what, f"sensitivity {sensitivity}")
        value = self.value(moved=2.0)
        public = self.release(NoiseSource(self.seed), value, 0.0)
        if not np.array_equal(public, np.argmax(value) if self.selects else value):
            what = "a value that no unit moves is not released as it is"
            raise self.violated(Rule.GUARDS, what, "sensitivity 0")

    def require_shape(self) -> None:
        """As many finite numbers as the value has, or one choice among them; also of what is not finite."""
        for moved in (0.0, 1e308, math.nan, math.inf):
            value = self.value(moved=moved)
            released = self.release(NoiseSource(self.seed), value)
            if released.shape != (() if self.selects else value.shape):
                what = f"a value of shape {value.shape} is released in the shape {released.shape}"
                raise self.violated(Rule.SHAPE, what, f"a value with {moved}")

    def require_fresh(self) -> None:
        """Two releases from one source, and two entries of one release, share no noise."""
        noise, many = NoiseSource(self.seed), self.value(size=64)
        first, second = (self.release(noise, many) for _ in range(2))
        shape = self.mechanism.noise_shape(many.shape)
        standard, other = (np.asarray(self.mechanism.draw(noise, shape), np.float64) for _ in range(2))
        if not self.selects:
            shared = reused([first, second])
            if shared is not None:
                raise self.violated(Rule.NOISE_REUSED, shared, "two releases of 64 zeros from one source")
        shared = reused([standard, other])
        if shared is not None:
            raise self.violated(Rule.NOISE_REUSED, shared, "two draws from one source")
        if self.selects:
            chosen = {float(self.release(noise, many)) for _ in range(20)}
            if len(chosen) == 1:
                what = "twenty choices among 64 equal scores are the same"
                raise self.violated(Rule.NOISE_REUSED, what, "64 zeros")

    def require_scaling(self) -> None:
        """The price is that of value / sensitivity, so both may be multiplied by the same number."""
        value = self.value(moved=0.5)
        plain = self.release(NoiseSource(self.seed), value)
        for scale in (2.0**-40, 2.0**40):
            scaled = self.release(NoiseSource(self.seed), value * scale, scale)
            wanted = plain if self.selects else plain * scale
            if not np.allclose(scaled, wanted, rtol=1e-9, atol=0.0):
                what = f"a value and its sensitivity times {scale:.3g} are not released as before, times that"
                raise self.violated(Rule.GUARDS, what, f"sensitivity {scale:.3g}")

    def require_paths(self) -> None:
        """`release` is `combine` with what `draw` drew."""
        value = self.value(moved=0.5)
        shape = self.mechanism.noise_shape(value.shape)
        drawn = self.mechanism.draw(NoiseSource(self.seed), (1, *shape))[0]
        traced = self.mechanism.combine(jnp.asarray(value), 0.75, jnp.asarray(drawn))
        released = self.release(NoiseSource(self.seed), value, 0.75)
        if not np.allclose(np.asarray(traced), released, rtol=1e-9, atol=1e-12):
            what = "`combine` with the noise that `draw` draws is not what `release` releases"
            raise self.violated(Rule.PATHS, what, "a value of 3 entries, sensitivity 0.75")

    def require_amount(self, draws: int) -> None:
        """The noise is no smaller than the event says, in the first entry of a value and in its last."""
        noise = NoiseSource(self.seed + 1)

        def released(value: Released) -> Released:
            return np.array([np.ravel(self.release(noise, value)) for _ in range(draws)])

        still = released(self.value())
        for place, entry in ((0, "first"),) if self.selects else ((0, "first"), (-1, "last")):
            moved = released(self.value(moved=1.0, place=place))
            case = f"{draws} releases of two values that differ in their {entry} entry"
            self._require_entry(still[:, place], moved[:, place], case)

    def _require_entry(self, one: Released, other: Released, case: str) -> None:
        """The noise of one entry, by its releases on either side."""
        spread = _spread(self.event)
        if spread is not None:
            found, tail = _sample_spread(self.event, one)
            if not tail[0] < found / spread < tail[1]:
                what = f"the noise has the scale {found:.4g} sensitivities where {self.event} is paid for {spread:.4g}"
                raise self.violated(Rule.NOISE_AMOUNT, what, case)
        shown = _too_telling(one, other, self.event, self.relation)
        if shown is not None:
            raise self.violated(Rule.NOISE_AMOUNT, shown, case)


def _spread(event: Event) -> float | None:
    """The scale of the noise over the sensitivity, where the event is of additive noise."""
    return event.noise_multiplier if isinstance(event, GaussianEvent | LaplaceEvent) else None


def _sample_spread(event: Event, sample: Released) -> tuple[float, tuple[float, float]]:
    """The scale that a sample shows, and within which ratios it is to be."""
    count = len(sample)
    if isinstance(event, GaussianEvent):
        low, high = (math.sqrt(float(q) / count) for q in stats.chi2.ppf([_SURE, 1.0 - _SURE], count))
        return float(np.sqrt(np.mean(sample**2))), (low, high)
    low, high = (float(q) / count for q in stats.gamma.ppf([_SURE, 1.0 - _SURE], count))
    return float(np.mean(np.abs(sample))), (low, high)


def _too_telling(one: Released, other: Released, event: Event, relation: Relation) -> str | None:
    """What tells two neighbouring values apart better than the price allows; None if nothing that was tried does."""
    half = len(one) // 2
    candidates = np.unique(
        np.quantile(np.concatenate([one[:half], other[:half]]), np.linspace(0.02, 0.98, 25))
    )
    sure = _SURE / (4 * len(candidates) * len(_EPSILONS))
    deltas = [accounting.delta(event, epsilon, relation) for epsilon in _EPSILONS]
    for left, right in ((one[half:], other[half:]), (other[half:], one[half:])):
        count = len(left)
        for threshold in candidates:
            for above in (True, False):
                inside = [
                    int(np.sum(side >= threshold) if above else np.sum(side < threshold))
                    for side in (left, right)
                ]
                likely = float(stats.beta.ppf(sure, inside[0], count - inside[0] + 1)) if inside[0] else 0.0
                rare = (
                    float(stats.beta.isf(sure, inside[1] + 1, count - inside[1]))
                    if inside[1] < count
                    else 1.0
                )
                for epsilon, delta in zip(_EPSILONS, deltas, strict=True):
                    if likely > math.exp(epsilon) * rare + delta:
                        return (
                            f"a threshold is passed with probability {likely:.3g} or more by one value, "
                            f"{rare:.3g} or less by its neighbour: the price allows exp({epsilon:g}) times as much "
                            f"and {delta:.3g}"
                        )
    return None


def reused(noises: list[Released]) -> str | None:
    """Which noise stands in for another's, in a sentence; None if each is its own.

    Args:
        noises: what was added in each release, over the sensitivity. Two that are multiples of one another are the
            same noise at two scales.
    """
    seen: dict[int, list[tuple[int, Released]]] = {}
    for place, noise in enumerate(noises):
        flat = np.ravel(np.asarray(noise, np.float64))
        length = float(np.linalg.norm(flat))
        if not (0.0 < length < math.inf):
            continue
        if flat.size > 1 and np.ptp(flat) <= 1e-9 * np.max(np.abs(flat)):
            return f"all {flat.size} entries of release {place + 1} have the same noise"
        # A single number has no direction: it is the same noise only where it is the same number.
        unit = flat / length if flat.size > 1 else flat
        for earlier, before in seen.setdefault(flat.size, []):
            apart = min(float(np.max(np.abs(unit - sign * before))) for sign in (1.0, -1.0))
            if apart <= 1e-9 * float(np.max(np.abs(unit))):
                return f"releases {earlier + 1} and {place + 1} have the same noise"
        seen[flat.size].append((place, unit))
    return None


def _require_hidden(mechanism: StreamMechanism, seed: int, again: str) -> None:
    """Its requests are methods, and its state prints nothing and cannot be carried away."""

    def violated(rule: Rule, what: str) -> ContractViolation:
        return ContractViolation(
            rule, mechanism, what, case="a stream of three numbers a value, or of one", repeat=again
        )

    for name in mechanism.requests:
        if not callable(getattr(mechanism, name, None)):
            raise violated(Rule.VALUE, f"it declares the request {name!r} and has no such method")
    noise = NoiseSource(seed)
    states: list[object] = []
    for _ in range(2):
        try:
            states.append(mechanism.open(noise, (3,)))
        except ValueError:  # it answers about single numbers
            states.append(mechanism.open(noise, ()))
    for state in states:
        if not isinstance(state, HiddenState) or repr(state) != "<private>" or str(state) != "<private>":
            raise violated(
                Rule.HIDDEN, "its state is no `HiddenState`, or prints as something else than <private>"
            )
        for carry in (pickle.dumps, copy.copy, copy.deepcopy, partial(pickle.dumps, protocol=2)):
            try:
                carry(state)
            except TypeError:
                continue
            raise violated(Rule.HIDDEN, "its state can be pickled or copied")
