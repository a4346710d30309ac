"""Records that are read in blocks are those of the arrays, in their order, and mapped one by one."""

import pickle

import numpy as np
import pytest
from scipy import sparse

from privopt.data.record_source import BLOCK_RECORDS, ArrayRecords, Description
from privopt.data.units import Units

ROWS = BLOCK_RECORDS + 100
FEATURES = np.arange(2.0 * ROWS).reshape(ROWS, 2)
TARGETS = np.arange(ROWS) % 2


def doubled(features):
    return 2 * features


def shifted(targets):
    return targets + 1


@pytest.mark.parametrize(("start", "stop"), [(0, ROWS), (7, 9), (BLOCK_RECORDS - 1, BLOCK_RECORDS + 1)])
def test_blocks_are_the_rows_in_their_order(start, stop):
    source = ArrayRecords(FEATURES, TARGETS, TARGETS).mapped(2, doubled, shifted)
    blocks = list(source.blocks(start, stop))
    np.testing.assert_array_equal(
        np.concatenate([block.private_features for block in blocks]), 2 * FEATURES[start:stop]
    )
    np.testing.assert_array_equal(
        np.concatenate([block.private_targets for block in blocks]), TARGETS[start:stop] + 1
    )
    assert source.by_user
    assert pickle.loads(pickle.dumps(source)).fingerprint() == source.fingerprint()


def test_sparse_rows_stay_sparse():
    source = ArrayRecords(sparse.csr_array(FEATURES[:5])).mapped(2, doubled)
    (block,) = source.blocks(1, 4)
    assert source.is_sparse
    assert sparse.issparse(block.private_features)
    assert block.private_targets is block.private_keys is None


def test_a_description_holds_the_arguments_of_units():
    units = Units.from_arrays(FEATURES, TARGETS, **Description(row_bound=1.0, classes=(0, 1)).arguments())
    assert units.public.row_bound == 1.0
    assert "private" in repr(ArrayRecords(FEATURES))
