import copy
import os
import pickle
from typing import Any

import numpy as np
import pytest
from randomgen import AESCounter, ChaCha, UserBitGenerator
from scipy import stats
from tests.support.scale_checks import LEVEL, WRONG_SCALES, coordinate_p_values

from privopt.mechanisms.noise import NoiseSource

DISTRIBUTIONS: dict[str, Any] = {
    "normal": stats.norm,
    "laplace": stats.laplace,
    "gumbel": stats.gumbel_r,
    "uniform": stats.uniform,
}


def test_the_ciphers_are_the_published_ones() -> None:
    plain = bytes.fromhex("00112233445566778899aabbccddeeff")
    aes = AESCounter(key=int.from_bytes(bytes(range(16)), "little"), counter=int.from_bytes(plain, "little"))
    block = np.asarray(aes.random_raw(2)).astype("<u8").tobytes()
    assert block.hex() == "69c4e0d86a7b0430d8cdb78070b4c55a"  # FIPS 197, appendix C.1
    key, counter = "2b7e151628aed2a6abf7158809cf4f3c", "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"
    aes = AESCounter(key=_number(key), counter=_number(counter))
    block = np.asarray(aes.random_raw(2)).astype("<u8").tobytes()
    assert block.hex() == "ec8cdf7398607cb0f2d21675ea9ea1e4"  # NIST SP 800-38A, F.5.1, block 1
    chacha = np.asarray(ChaCha(key=0, counter=0, rounds=20).random_raw(16)).astype("<u8").tobytes().hex()
    assert chacha[:128] == (  # RFC 8439, appendix A.1, vector 1
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert chacha[128:] == (  # vector 2: the block after it
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )


def _number(digits: str) -> int:
    """The number whose bytes, the lowest first, are these."""
    return int.from_bytes(bytes.fromhex(digits), "little")


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_each_distribution_has_the_scale_it_claims(name: str) -> None:
    draws = getattr(NoiseSource(seed=11), name)((4000, 3))
    assert draws.dtype == np.float64
    assert coordinate_p_values(draws, DISTRIBUTIONS[name].cdf).min() > LEVEL
    for wrong in WRONG_SCALES:
        assert coordinate_p_values(wrong * draws, DISTRIBUTIONS[name].cdf).max() < LEVEL


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 2)])
def test_a_block_of_draws_consumes_the_stream_as_single_draws_do(name: str, shape: tuple[int, ...]) -> None:
    ahead, singly = NoiseSource(seed=5), NoiseSource(seed=5)
    block = getattr(ahead, name)((300, *shape))
    assert np.array_equal(block, np.stack([getattr(singly, name)(shape) for _ in range(300)]))
    assert np.array_equal(ahead.normal((4,)), singly.normal((4,)))


def test_a_seed_repeats_every_stream_and_says_that_the_run_is_not_private() -> None:
    first, again = NoiseSource(seed=3), NoiseSource(np.int64(3))
    assert first.seeded
    assert np.array_equal(first.normal((5,)), again.normal((5,)))
    assert np.array_equal(first.units_generator.random(5), again.units_generator.random(5))
    assert np.array_equal(first.public_generator.random(5), again.public_generator.random(5))
    assert "not private" in repr(first)


def test_other_seeds_and_other_streams_are_other_numbers() -> None:
    source = NoiseSource(seed=3)
    draws = [
        source.uniform((4,)),
        source.units_generator.random(4),
        source.public_generator.random(4),
        NoiseSource(seed=4).uniform((4,)),
        NoiseSource(seed=3 + 2**64).uniform((4,)),
    ]
    assert len({tuple(d) for d in draws}) == len(draws)


def test_the_streams_do_not_disturb_one_another() -> None:
    busy, idle = NoiseSource(seed=8), NoiseSource(seed=8)
    busy.units_generator.random(1000)
    busy.public_generator.random(1000)
    assert np.array_equal(busy.normal((6,)), idle.normal((6,)))


def test_without_a_seed_every_source_is_fresh() -> None:
    first, second = NoiseSource(), NoiseSource()
    assert not first.seeded
    assert not np.array_equal(first.normal((8,)), second.normal((8,)))
    assert not np.array_equal(first.units_generator.random(8), second.units_generator.random(8))


def test_a_forked_child_takes_new_keys_unless_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    secret, seeded = NoiseSource(), NoiseSource(seed=1)
    generators = secret.units_generator, seeded.units_generator
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    assert secret.units_generator is not generators[0]
    assert seeded.units_generator is generators[1]


@pytest.mark.parametrize("source", [NoiseSource(), NoiseSource(seed=2)], ids=["secret", "seeded"])
@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_source_is_neither_pickled_nor_copied(source: NoiseSource, duplicate: Any) -> None:
    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        duplicate(source)


def test_a_secret_source_shows_nothing() -> None:
    assert repr(NoiseSource()) == "NoiseSource(<private>)"
    assert not hasattr(NoiseSource(), "__dict__")


@pytest.mark.parametrize("seed", ["7", 1.5, -1])
def test_a_wrong_seed_is_refused(seed: Any) -> None:
    with pytest.raises(
        Exception, match=r"random_state|seed"
    ):  # under PRIVOPT_TYPECHECK the annotation refuses it first
        NoiseSource(seed)


def test_a_processor_without_aes_instructions_uses_chacha20(monkeypatch: pytest.MonkeyPatch) -> None:
    class SoftwareAES(AESCounter):  # type: ignore[misc]
        use_aesni = False

    monkeypatch.setattr("privopt.mechanisms.noise.AESCounter", SoftwareAES)
    assert isinstance(NoiseSource().units_generator.bit_generator, ChaCha)


def test_normal_tails_match_their_mass() -> None:
    draws = np.abs(NoiseSource(seed=20).normal((2_000_000,)))
    for sigmas in (3.0, 4.0, 5.0):
        beyond = int(np.count_nonzero(draws > sigmas))
        assert stats.binomtest(beyond, draws.size, 2 * stats.norm.sf(sigmas)).pvalue > LEVEL
    # Mutant: the float32 normals of an inverse error function stop near 5.4 and miss a share of the mass beyond 4.
    assert (
        stats.binomtest(int(np.count_nonzero(draws > 4.2)), draws.size, 2 * stats.norm.sf(4.0)).pvalue < LEVEL
    )


def test_laplace_tails_match_their_mass() -> None:
    draws = np.abs(NoiseSource(seed=21).laplace((1_000_000,)))
    for scales in (4.0, 8.0, 11.0):
        beyond = int(np.count_nonzero(draws > scales))
        assert stats.binomtest(beyond, draws.size, np.exp(-scales)).pvalue > LEVEL


def scripted(words: list[int]) -> np.random.Generator:
    """A NumPy generator that reads these 64-bit words."""
    script = iter(words)
    return np.random.Generator(UserBitGenerator(lambda _: next(script), 64))


def test_the_samplers_reach_far_beyond_any_delta() -> None:
    """The tail branch of NumPy's ziggurat, driven by hand close to the largest draws that its uniforms allow."""
    outermost = (2**52 - 1) << 9  # layer 0, a point beyond its rectangle
    largest = (2**53 - 1) << 11  # the uniform 1 - 2^-53
    normal = scripted([outermost, (2**53 - 2**12) << 11, largest]).standard_normal()
    assert abs(normal) == pytest.approx(11.431341, abs=1e-5)
    assert 2 * stats.norm.sf(11.0) < 1e-27
    assert scripted([largest, largest]).standard_exponential() == pytest.approx(44.433918, abs=1e-5)


@pytest.mark.audit
def test_normal_tails_match_their_mass_on_many_draws(evidence: Any) -> None:
    evidence("noise", "tails of float normals", tried=20_000_000, of="draws")
    source = NoiseSource(seed=22)
    levels = np.array([4.0, 4.5, 5.0, 5.5])
    beyond, total = np.zeros(len(levels)), 0
    for _ in range(20):
        draws = np.abs(source.normal((1_000_000,)))
        beyond += [np.count_nonzero(draws > level) for level in levels]
        total += draws.size
    for level, count in zip(levels, beyond, strict=True):
        assert stats.binomtest(int(count), total, 2 * stats.norm.sf(level)).pvalue > LEVEL
