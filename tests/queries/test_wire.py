"""A query that was sent computes what the one that was meant computes; nothing else arrives."""

import json

import jax
import numpy as np
import pytest
from tests.contracts.queries import AT, EVERY_QUERY, FIRST_OF_ITS_KIND, ROW_BOUND, D
from tests.support.turns import but_later

from privopt.data.units import Units
from privopt.engine.reference import ReferenceEngine
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.regularisers import Ridge
from privopt.queries.lots import LocalPass
from privopt.queries.received import RECEIVABLE, decoded, encoded
from privopt.queries.slopes import ClippedGradient

SENT = {name: query for name, query in EVERY_QUERY.items() if type(query) in RECEIVABLE.values()}


def sent(query):
    """What arrives of a query."""
    text, arrays = encoded(query)
    json.loads(text)
    return decoded(text, arrays, getattr(query, "loss", losses.logistic))


@pytest.mark.parametrize("name", SENT)
def test_every_field_of_a_query_arrives(name):
    query = SENT[name]
    with double_precision():
        found = sent(query)
        assert type(found) is type(query)
        (text, arrays), (again, others) = encoded(query), encoded(found)
        assert again == text
        assert {name: (one.dtype, one.tobytes()) for name, one in others.items()} == {
            name: (one.dtype, one.tobytes()) for name, one in arrays.items()
        }
        (before, structure), (after, other) = jax.tree.flatten(query), jax.tree.flatten(found)
        assert other == structure
        assert all(np.array_equal(one, another) for one, another in zip(before, after, strict=True))


@pytest.mark.at_once("gradient norm", "total weight")
@pytest.mark.parametrize("name", but_later(FIRST_OF_ITS_KIND, SENT))
def test_a_query_arrives_to_the_last_bit(name):
    query, rng = SENT[name], np.random.default_rng(4)
    units = Units.from_arrays(
        rng.normal(size=(9, D)), rng.integers(0, 3, 9) - 1.0, row_bound=ROW_BOUND, groups=np.arange(9) // 3
    )
    with double_precision():
        found = sent(query)
        engine = ReferenceEngine(units)
        assert np.array_equal(engine.clipped_sum(found), engine.clipped_sum(query))
        assert float(np.asarray(found.radius())) == float(np.asarray(query.radius()))


def test_another_loss_is_refused():
    text, arrays = encoded(ClippedGradient(loss=losses.huber(0.5), at=AT, clip=1.0))
    with pytest.raises(
        ValueError, match=r"Huber\(threshold=1.0\).*Huber\(threshold=0.5\).*both sides the same"
    ):
        decoded(text, arrays, losses.huber(1.0))


def test_only_the_library_s_own_classes_are_made():
    text, arrays = encoded(ClippedGradient(loss=losses.logistic, at=AT, clip=1.0))
    for kind in ("GradientNorms", "os.system", "Units"):
        with pytest.raises(ValueError, match="no query that is answered here"):
            decoded(json.dumps(json.loads(text) | {"kind": kind}), arrays, losses.logistic)
    text, arrays = encoded(
        LocalPass(loss=losses.logistic, at=AT, step_size=0.1, clip=1.0, regulariser=Ridge(0.1))
    )
    with pytest.raises(ValueError, match="no regulariser or constraint set"):
        decoded(text.replace('"Ridge"', '"Path"'), arrays, losses.logistic)


def test_a_regulariser_of_ones_own_is_not_sent():
    class Own(Ridge):
        pass

    query = LocalPass(loss=losses.logistic, at=AT, step_size=0.1, clip=1.0, regulariser=Own(0.1))
    with pytest.raises(ValueError, match="`regulariser` is a Own, which is not sent"):
        encoded(query)


def test_a_subclass_is_not_sent_in_place_of_its_base():
    class Own(ClippedGradient):
        pass

    with pytest.raises(ValueError, match="Own is not answered"):
        encoded(Own(loss=losses.logistic, at=AT, clip=1.0))
