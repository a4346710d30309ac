"""The secret that lays out users: the key of a hash of their keys, and a lottery of the records they keep. PRIVATE."""

import base64
import copy
import hashlib
import os
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from randomgen import AESCounter, ChaCha

from privopt.mechanisms.noise import NoiseSource, RepeatedChoice

_FROM_ANYWHERE = (
    AESCounter,
    ChaCha,
    np.random.PCG64,
)  # a double of theirs is one step, and steps can be skipped
_AT_ONCE = 2**20  # doubles that are skipped by drawing them
_PROCESS = os.urandom(16)  # tells this process from others


class UnitsNoise(Protocol):
    """The part of a noise source that decides which records of a user are kept."""

    @property
    def units_generator(self) -> np.random.Generator:
        """A secret generator."""
        ...


def is_secret(noise: UnitsNoise) -> bool:
    """Whether a source is known to be one that nobody can repeat."""
    return isinstance(noise, NoiseSource | RepeatedChoice) and not noise.seeded


@dataclass(frozen=True, eq=False, repr=False)
class UserSecret:
    """What decides where a user lies and which records are kept; the same wherever it is sent.

    Attributes:
        private_bits: of which the double at place i, counted from here, is the lottery number of the record at place i
            of the source, whoever reads it.
        private_seed: 32 bytes, from which the hash keys are derived.
        process: tells the process that drew it from others.
        private_others: keys of types of their own, in the order in which this process met them.

    Privacy:
        The choice of a user's records is uniform and independent of what they hold, since the lottery numbers are
        drawn without them. Nothing rests on the hash but that no part overflows, see `user_parts`: for whoever knows
        it, users with keys of their choice could be made to meet in one part. The noise of a run cannot be had from
        it: of a source that is not seeded it holds a key of its own. It can be pickled, as it is sent to the workers
        that read and hold records: which of them are kept, these see anyway. Nobody else gets it.
    """

    private_bits: Any
    private_seed: bytes
    process: bytes
    private_others: dict[Hashable, int] = field(default_factory=dict[Hashable, int])

    @classmethod
    def drawn(cls, noise: UnitsNoise | None, rows: int) -> "UserSecret":
        """Draw it once for a source of so many records.

        Args:
            noise: source of the secret choice; default: fresh, from the operating system. Its stream is used up as by
                `units_generator.random(rows)`, and the lottery numbers are these.
            rows: how many records there are.
        """
        source = NoiseSource() if noise is None else noise
        if isinstance(source, NoiseSource) and not source.seeded:
            source = RepeatedChoice(source)  # its own stream decides who is sampled: it is not given away
        generator = source.units_generator
        if isinstance(generator.bit_generator, _FROM_ANYWHERE):
            private_bits = copy.deepcopy(generator.bit_generator)
            _skip(generator, rows)
        else:
            private_bits = ChaCha(key=int.from_bytes(generator.bytes(32), "little"), rounds=20)
        return cls(private_bits, np.random.Generator(_placed(private_bits, 0)).bytes(32), _PROCESS)

    @classmethod
    def lasting(cls, noise: UnitsNoise | None, rows: int, files: str) -> "UserSecret":
        """The same for a source that lasts, such as a file: for a run that may be resumed, the one kept with it.

        Args:
            noise: see `drawn`.
            rows: likewise.
            files: what the records are read from, see `RecordSource.fingerprint`; empty for arrays, which do not last.
        Privacy:
            Lottery numbers belong to places, and a neighbour moves places. In one table that leaves their law as it
            was, however often it is read. In another table places move otherwise, so numbers that both had in common
            would not have the law that they had together: whatever else is read gets independent ones.
        """
        source = NoiseSource() if noise is None else noise
        if not files:
            return cls.drawn(source, rows)
        if isinstance(source, NoiseSource) and not source.seeded:
            source = RepeatedChoice.lasting(source)
        secret = cls.drawn(source, rows)
        if not is_secret(source):
            return secret
        own = hashlib.blake2b(
            files.encode(), key=secret.private_seed, person=b"privopt lottery", digest_size=32
        )
        return replace(secret, private_bits=ChaCha(key=int.from_bytes(own.digest(), "little"), rounds=20))

    def lottery(self, start: int, stop: int) -> NDArray[np.float64]:
        """The lottery numbers of the records start..stop-1, uniform in [0, 1)."""
        return np.random.Generator(_placed(self.private_bits, start)).random(stop - start)

    @property
    def is_at_home(self) -> bool:
        """Whether it was drawn in this process."""
        return self.process == _PROCESS

    def hash_keys(self, kind: str) -> tuple[str, str]:
        """The keys, 16 letters of 6 random bits each, of the two hashes of one kind of texts."""
        private_keys = hashlib.blake2b(
            self.private_seed, digest_size=24, person=b"privopt users", salt=kind.encode()
        ).digest()
        return base64.b64encode(private_keys[:12]).decode(), base64.b64encode(private_keys[12:]).decode()

    def number(self, private_key: Hashable) -> int:
        """The number of a key of a type of its own: the same for keys that are equal, in this process."""
        return self.private_others.setdefault(private_key, len(self.private_others))

    def __repr__(self) -> str:
        return "UserSecret(<private>)"


def _placed(private_bits: Any, steps: int) -> Any:
    """A copy so many doubles further on."""
    if isinstance(private_bits, ChaCha):  # it has no `advance`
        private_state: Any = private_bits.state["state"]
        low, high = (int(word) for word in private_state["ctr"])
        key = int.from_bytes(np.asarray(private_state["keysetup"], "<u4").tobytes(), "little")
        counter = (low + (high << 64) + 2 * steps) % 2**128
        return ChaCha(key=key, counter=counter, rounds=private_state["rounds"])
    private_copy = copy.deepcopy(private_bits)
    private_copy.advance(steps)
    return private_copy


def _skip(generator: np.random.Generator, steps: int) -> None:
    """Go so many doubles further on."""
    bits: Any = generator.bit_generator
    if not isinstance(bits, ChaCha):
        bits.advance(steps)
        return
    for start in range(0, steps, _AT_ONCE):
        generator.random(min(_AT_ONCE, steps - start))
