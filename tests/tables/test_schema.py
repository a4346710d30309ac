"""A schema says what is public about a table, and a mistake in it is one sentence."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from privopt.tables import Schema, TableError

ENTRY: dict[str, Any] = {
    "target": "income",
    "other_targets": ["tax"],
    "sensitive": ["sex"],
    "user": "person",
    "n": 100,
    "columns": {
        "person": {"kind": "id"},
        "age": {"kind": "num", "low": 0, "high": 100},
        "gain": {"kind": "num", "low": 0, "high": 1e5, "log1p": True},
        "sex": {"kind": "cat", "levels": ["f", "m"]},
        "words": {"kind": "set", "size": 50, "max_active": 4},
        "picture": {"kind": "pixels", "size": 9, "low": 0, "high": 255},
        "remarks": {"kind": "text"},
        "tax": {"kind": "num", "low": 0, "high": 10},
        "income": {"kind": "flag"},
        "split": {"kind": "cat", "levels": ["train", "test"]},
    },
}


def with_column(**column: Any) -> dict[str, Any]:
    return {"columns": {"wage": column}}


def names(schema: Schema, *args: Any, **kwargs: Any) -> list[str]:
    return [column.name for column in schema.feature_columns(*args, **kwargs)]


def test_an_entry_survives_writing_and_reading(tmp_path: Path) -> None:
    schema = Schema.from_json(ENTRY)
    assert Schema.from_json(schema.to_json()) == schema
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(ENTRY), encoding="utf-8")
    assert Schema.from_json(path) == Schema.from_json(str(path)) == schema
    assert Schema.from_json(schema) is schema
    assert hash(schema) == hash(Schema.from_json(ENTRY))


def test_targets_users_splits_and_text_are_no_features() -> None:
    schema = Schema.from_json(ENTRY)
    assert schema.split == "split"
    assert names(schema) == ["age", "gain", "sex", "words", "picture"]
    assert names(schema, exclude=["words"]) == ["age", "gain", "sex", "picture"]
    assert names(schema, target="age") == ["gain", "sex", "words", "picture"]
    assert names(schema, ["sex", "tax"]) == ["sex", "tax"]


def test_a_split_column_is_recognised_by_its_levels_only() -> None:
    ordinary = {"columns": {"split": {"kind": "cat", "levels": ["yes", "no"]}}}
    assert Schema.from_json(ordinary).split is None
    named = {
        "split": "half",
        "columns": {"half": {"kind": "flag"}, "age": {"kind": "num", "low": 0, "high": 1}},
    }
    assert names(Schema.from_json(named)) == ["age"]


def test_targets_are_classes_or_a_range() -> None:
    schema = Schema.from_json(ENTRY)
    assert schema.target_encoding().classes == (0, 1)
    assert schema.target_encoding("sex").classes == ("f", "m")
    assert schema.target_encoding("age").bounds == (0.0, 100.0)
    with pytest.raises(
        TableError, match=r"'words' is of kind 'set': only 'flag', 'cat', 'num' can be predicted"
    ):
        schema.target_encoding("words")
    with pytest.raises(TableError, match="names no target"):
        Schema.from_json(with_column(kind="flag")).target_encoding()


def test_whole_numbers_are_levels() -> None:
    schema = Schema.from_json(with_column(kind="cat", levels=[1, 2, "three"]))
    assert schema.column("wage").levels == ("1", "2", "three")


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        ({"kind": "number"}, "'wage' has kind 'number', which does not exist: use one of 'num', 'flag'"),
        ({"low": 0}, "'wage' has no 'kind'"),
        ({"kind": "num", "low": 0}, "'wage' of kind 'num' lacks 'high': a public value"),
        (
            {"kind": "num", "low": 0, "high": 1, "log": True},
            "unknown key 'log': use 'kind', 'low', 'high', 'log1p'",
        ),
        ({"kind": "num", "low": 1, "high": 1}, "'wage' needs low < high; got low=1 and high=1"),
        ({"kind": "num", "low": "0", "high": 1}, "'wage' needs a finite number as its 'low'; got '0'"),
        ({"kind": "num", "low": 0, "high": float("inf")}, "finite number as its 'high'; got inf"),
        ({"kind": "num", "low": 0, "high": 10**400}, "finite number as its 'high'"),
        ({"kind": "num", "low": -1, "high": 1, "log1p": True}, "its low must be above -1; got -1"),
        ({"kind": "num", "low": 0, "high": 1, "log1p": "yes"}, "log1p='yes': it must be true or false"),
        ({"kind": "cat", "levels": []}, "'wage' needs a non-empty list of levels"),
        ({"kind": "cat", "levels": "ab"}, "'wage' needs a list of levels"),
        ({"kind": "cat", "levels": ["a", ""]}, "levels that are non-empty texts"),
        ({"kind": "cat", "levels": ["a", "b", "a"]}, "'wage' lists the level 'a' twice"),
        ({"kind": "set", "size": 0}, "'wage' needs a size from 1 to 16,777,216"),
        ({"kind": "set", "size": 5, "max_active": 0}, "'wage' needs a max_active of at least 1"),
        ("num", "'wage' must be described by an object"),
    ],
)
def test_a_mistake_in_a_column_names_it_and_says_what_is_allowed(column: Any, sentence: str) -> None:
    with pytest.raises(TableError, match=re.escape(sentence)):
        Schema.from_json({"columns": {"wage": column}})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"target": "wage"}, "The schema's 'target' names 'wage', which is not among its columns"),
        ({"other_targets": ["wage"]}, "'other_targets' names 'wage'"),
        ({"other_target": ["tax"]}, "unknown key 'other_target': did you mean 'other_targets'?"),
        ({"file": {"sep": ";"}}, "unknown key 'sep': it is called 'separator' here"),
        ({"file": {"na_values": ["NA"]}}, "unknown key 'na_values': it is called 'missing' here"),
        ({"sensitive": "sex"}, "'sensitive' must be a list of column names"),
        ({"user": ["person"]}, "'user' must be the name of one column"),
        ({"target": "person"}, "The target 'person' is of kind 'id'"),
        ({"n": 0}, "'n' must be a whole number of rows, at least 1; got 0"),
        ({"columns": {}}, "needs at least one column"),
        ({"columns": []}, "must be an object that describes each column"),
    ],
)
def test_a_mistake_in_the_roles_is_a_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TableError, match=re.escape(sentence)):
        Schema.from_json(ENTRY | change)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"features": ["age", "person"]}, "'person' (kind 'id') cannot be a feature"),
        ({"features": ["income"]}, "'income' (kind 'flag') cannot be a feature"),
        ({"features": ["wage"]}, "The schema has no column 'wage': it names 'person', 'age'"),
        ({"features": ["age", "age"]}, "named twice"),
        ({"features": []}, "No feature column is left"),
        ({"exclude": ["wage"]}, "The schema has no column 'wage'"),
        ({"target": "wage"}, "The schema has no column 'wage'"),
    ],
)
def test_unusable_features_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TableError, match=re.escape(sentence)):
        Schema.from_json(ENTRY).feature_columns(**arguments)


def test_a_file_of_several_entries_needs_a_name(tmp_path: Path) -> None:
    several = {"one": ENTRY, "two": with_column(kind="flag")}
    assert Schema.from_json(several, "two").names == ("wage",)
    assert Schema.from_json({"one": ENTRY}) == Schema.from_json(ENTRY)
    with pytest.raises(TableError, match="several entries: say which one by name, of 'one', 'two'"):
        Schema.from_json(several)
    with pytest.raises(TableError, match="no entry 'three': it has 'one', 'two'"):
        Schema.from_json(several, "three")
    with pytest.raises(TableError, match="has no 'columns'"):
        Schema.from_json({"target": "y"})
    with pytest.raises(TableError, match="There is no schema file"):
        Schema.from_json(tmp_path / "absent.json")
    broken = tmp_path / "broken.json"
    broken.write_text('{"columns": ', encoding="utf-8")
    with pytest.raises(TableError, match="is not JSON: see line 1"):
        Schema.from_json(broken)
    broken.write_text("[]", encoding="utf-8")
    with pytest.raises(TableError, match="holds no JSON object"):
        Schema.from_json(broken)
    broken.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TableError, match="nor any UTF-8"):
        Schema.from_json(broken)


def test_every_shared_schema_reads_and_writes(shared_data: Path) -> None:
    for name in json.loads((shared_data / "schema.json").read_text(encoding="utf-8")):
        schema = Schema.from_json(shared_data / "schema.json", name)
        assert Schema.from_json(schema.to_json()) == schema
        assert schema.feature_columns()
        assert schema.target_encoding() is not None


def test_a_name_that_is_nearly_there_is_meant() -> None:
    with pytest.raises(TableError, match=r"names 'person', 'age'.* Did you mean 'person'\?"):
        Schema.from_json(ENTRY).column("persons")


def test_a_date_is_no_target_and_the_sentence_says_what_is() -> None:
    columns = {"x": {"kind": "flag"}, "when": {"kind": "date", "low": "2020-01-01", "high": "2021-01-01"}}
    with pytest.raises(TableError, match=r"of kind 'date': .* store the days since a day of your choice"):
        Schema.from_json({"columns": columns, "target": "when"})


def test_markers_may_be_whole_numbers() -> None:
    schema = Schema.from_json({"columns": {"x": {"kind": "flag"}}, "file": {"missing": [-99, "NA"]}})
    assert schema.format.missing == ("-99", "NA")
    assert schema.format.missing_numbers == {-99}
    assert Schema.from_json(schema.to_json()) == schema
    with pytest.raises(TableError, match="needs a list of texts or whole numbers as 'missing'"):
        Schema.from_json({"columns": {"x": {"kind": "flag"}}, "file": {"missing": [1.5]}})
