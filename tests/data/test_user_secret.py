"""The secret of a layout of users: its lottery is that of the source it is drawn from, and can be read anywhere."""

import copy

import numpy as np
import pytest
from randomgen import ChaCha

from privopt.data.user_keys import UserSecret, is_secret
from privopt.mechanisms.noise import KEPT_CHOICE, NoiseSource, RepeatedChoice


class Given:
    """A source of units with some bit generator, after a few draws."""

    def __init__(self, bits) -> None:
        self.units_generator = np.random.Generator(bits)
        self.units_generator.random(5)
        self.units_generator.integers(0, 2**32, 3, np.uint32)


SOURCES = {
    "seeded": lambda: NoiseSource(3),
    "repeated": lambda: RepeatedChoice(NoiseSource(3)),
    "ChaCha": lambda: Given(ChaCha(key=2**200 + 5, counter=2**64 - 20, rounds=20)),
    "PCG64": lambda: Given(np.random.PCG64(3)),
}


@pytest.mark.parametrize("source", SOURCES)
def test_the_lottery_is_what_the_source_would_have_drawn(source: str) -> None:
    rows = 100
    expected, noise = SOURCES[source](), SOURCES[source]()
    numbers = expected.units_generator.random(rows)
    secret = UserSecret.drawn(noise, rows)
    assert np.array_equal(secret.lottery(0, rows), numbers)
    for start, stop in ((0, 1), (1, 9), (8, 24), (13, 100), (7, 7)):
        assert np.array_equal(secret.lottery(start, stop), numbers[start:stop])
    if source != "repeated":  # which draws the same numbers each time it is asked
        assert noise.units_generator.random() == expected.units_generator.random()


def test_any_other_generator_gives_a_lottery_of_its_own() -> None:
    secret = UserSecret.drawn(Given(np.random.MT19937(3)), 10)
    again = UserSecret.drawn(Given(np.random.MT19937(3)), 10)
    other = UserSecret.drawn(Given(np.random.MT19937(4)), 10)
    assert np.array_equal(secret.lottery(0, 10)[3:], again.lottery(3, 10))
    assert secret.hash_keys("text") == again.hash_keys("text") != other.hash_keys("text")
    assert not np.array_equal(secret.lottery(0, 10), other.lottery(0, 10))


def test_a_secret_source_keeps_its_own_stream() -> None:
    noise = NoiseSource()
    before = copy.deepcopy(noise.units_generator.bit_generator)
    secret = UserSecret.drawn(noise, 10)
    numbers = np.random.Generator(before).random(200)
    assert not set(secret.lottery(0, 100)) & set(numbers)


def test_a_secret_that_is_kept_has_a_lottery_for_each_source_of_files_and_none_for_arrays() -> None:
    def lottery(files: str) -> list[float]:
        return UserSecret.lasting(None, 9, files).lottery(0, 9).tolist()

    token = KEPT_CHOICE.set(lambda: bytes(range(32)))
    try:
        assert lottery("one") == lottery("one")
        assert len({number for files in ("one", "other", "", "") for number in lottery(files)}) == 36
        hashes = {UserSecret.lasting(None, 9, files).hash_keys("text") for files in ("one", "other", "")}
        assert len(hashes) == 2  # users of all tables of a run are laid out by one hash
    finally:
        KEPT_CHOICE.reset(token)
    seeded = UserSecret.lasting(NoiseSource(3), 9, "one")
    assert np.array_equal(seeded.lottery(0, 9), UserSecret.drawn(NoiseSource(3), 9).lottery(0, 9))


def test_it_prints_as_private_and_has_a_key_for_each_kind() -> None:
    secret = UserSecret.drawn(None, 10)
    assert repr(secret) == "UserSecret(<private>)"
    keys = {secret.hash_keys(kind) for kind in ("text", "bytes", "tuple")}
    letters = {key for pair in keys for key in pair}
    assert len(letters) == 6
    assert all(len(key) == 16 and key.isascii() for key in letters)
    assert secret.is_at_home
    assert is_secret(NoiseSource())
    assert not is_secret(NoiseSource(1))
    assert not is_secret(Given(np.random.PCG64(1)))
