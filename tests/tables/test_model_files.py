"""A model directory comes back as it was saved, or is refused with a sentence."""

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privopt.tables import TableError, load_model, save_model

ARRAYS = {
    "coef": np.linspace(-1, 1, 12).reshape(3, 4).T,  # not in C order
    "intercept": np.array(0.1),
    "codes": np.array([1, 2], dtype=">i4"),
    "mask": np.array([True, False]),
    "single": np.array([0.1], dtype=np.float32),
    "empty": np.zeros((0, 3)),
}
DOCUMENT: dict[str, Any] = {
    "model": "logistic",
    "epsilon": math.inf,
    "low": -math.inf,
    "bounds": (0, 1.5),
    "levels": ["ä", "b"],
    "n": np.int64(7),
    "scale": np.float64(0.1),
    "nested": {"seeded": False, "seed": None, "deep": [{"x": 1e-300}]},
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_model(tmp_path / "a" / "model", arrays=ARRAYS, document=DOCUMENT)
    return tmp_path / "a" / "model"


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "model.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(content | changes), encoding="utf-8")


def test_arrays_and_document_come_back_exactly(saved: Path) -> None:
    arrays, document = load_model(saved)
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert np.array_equal(arrays[name], array)
        assert arrays[name].shape == array.shape
        assert arrays[name].dtype == array.dtype.newbyteorder("=")
    assert document == DOCUMENT | {"bounds": [0, 1.5], "n": 7, "scale": 0.1}


def test_the_directory_holds_two_plain_files_that_can_be_replaced(saved: Path) -> None:
    assert sorted(path.name for path in saved.iterdir()) == ["model.json", "model.safetensors"]
    json.loads(
        (saved / "model.json").read_text(encoding="utf-8"), parse_constant=lambda name: pytest.fail(name)
    )
    save_model(saved, arrays={"coef": np.ones(2)}, document={"model": "linear"})
    arrays, document = load_model(saved)
    assert list(arrays) == ["coef"]
    assert document == {"model": "linear"}


def test_not_a_number_survives(tmp_path: Path) -> None:
    save_model(tmp_path, arrays={"x": np.array([math.nan])}, document={"x": math.nan})
    arrays, document = load_model(tmp_path)
    assert math.isnan(arrays["x"][0])
    assert math.isnan(document["x"])


def test_a_newer_version_is_refused_with_what_to_do(saved: Path) -> None:
    edit(saved, format_version=2)
    with pytest.raises(
        TableError, match="has format version 2, and this privopt reads versions up to 1: update privopt"
    ):
        load_model(saved)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"format": "other"}, "was not written by privopt"),
        ({"format_version": "one"}, "no usable format version"),
        ({"document": 3}, "holds no document"),
        ({"arrays_sha256": "0" * 64}, "is damaged"),
    ],
)
def test_an_altered_document_is_refused(saved: Path, changes: dict[str, Any], sentence: str) -> None:
    edit(saved, **changes)
    with pytest.raises(TableError, match=sentence):
        load_model(saved)


def test_altered_arrays_are_refused(saved: Path, tmp_path: Path) -> None:
    arrays = saved / "model.safetensors"
    whole = arrays.read_bytes()
    arrays.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(TableError, match=r"is damaged: model\.safetensors is not the file"):
        load_model(saved)
    arrays.unlink()
    with pytest.raises(TableError, match=r"has no readable model\.safetensors"):
        load_model(saved)
    (saved / "model.json").write_text("{", encoding="utf-8")
    with pytest.raises(TableError, match="is not JSON"):
        load_model(saved)
    with pytest.raises(TableError, match=r"is no model directory: it has no readable model\.json"):
        load_model(tmp_path / "absent")


@pytest.mark.parametrize(
    ("arrays", "document", "sentence"),
    [
        ({"a": np.array([object()])}, {}, "Array 'a' has dtype object: only numbers and truth values"),
        ({"a": np.array(["x"])}, {}, "Array 'a' has dtype"),
        ({}, {"deep": [{"x": np.ones(2)}]}, r"document\.deep\[0\]\.x is a ndarray.*arrays go into `arrays`"),
        ({}, {"deep": {1: 2}}, r"document\.deep has a key that is not a text"),
    ],
)
def test_what_has_no_plain_form_is_refused_before_anything_is_written(
    tmp_path: Path, arrays: dict[str, Any], document: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(TypeError, match=sentence):
        save_model(tmp_path / "model", arrays=arrays, document=document)
    assert not (tmp_path / "model").exists()


def test_an_interrupted_write_leaves_the_old_model(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(TableError, match="cannot be written: No space left on device"):
        save_model(saved, arrays={}, document={})
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before


def test_a_directory_in_place_of_a_file_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(TableError, match="cannot be written"):
        save_model(tmp_path / "file", arrays={}, document={})


def test_links_pipes_and_absurd_documents_are_refused(saved: Path, tmp_path: Path) -> None:
    content = (saved / "model.json").read_text()
    for text, said in {
        content.replace('"format":', '"format": 1, "format":', 1): "names a member twice",
        "[" * 100_000: "deep|not JSON",
        '{"a": 1e999}': "beyond the range",
        '{"format": NaN}': "NaN",
    }.items():
        (saved / "model.json").write_text(text)
        with pytest.raises(TableError, match=f"is damaged.*({said})"):
            load_model(saved)
    (saved / "model.json").write_text(content)
    for name in ("model.json", "model.safetensors"):
        (saved / name).rename(tmp_path / name)
        (saved / name).symlink_to(tmp_path / name)
        with pytest.raises(TableError, match="symbolic link"):
            load_model(saved)
        (saved / name).unlink()
        (tmp_path / name).rename(saved / name)
    load_model(saved)
