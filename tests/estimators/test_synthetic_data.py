"""`SyntheticData`: what it refuses, what a fit gives, and that it is as private as it says."""

import json
import math
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.base import clone

import privopt
from privopt.errors import ArgumentError, BudgetExceeded, PlanMismatch, PrivoptError
from privopt.estimators import table_source
from privopt.estimators.synthetic_data import SyntheticData
from privopt.estimators.table_source import asked_workload
from privopt.mechanisms.additive import Gaussian
from privopt.problems.workload import Workload
from privopt.queries.marginals import MarginalMeans
from privopt.result import Outcome
from privopt.status import Status
from privopt.synthesis.adaptive_marginals import AdaptiveMarginals
from privopt.synthesis.base import Histogram
from privopt.synthesis.finishing import Finishing
from privopt.synthesis.registry import GaussianMarginals
from privopt.tables import Schema, TableError
from privopt.tables.coding import TableCoding
from privopt.tables.table import Table

N = 3000
SCHEMA = {
    "user": "person",
    "columns": {
        "person": {"kind": "id"},
        "sex": {"kind": "cat", "levels": ["f", "m"]},
        "age": {"kind": "num", "low": 0, "high": 99, "integer": True},
        "smokes": {"kind": "flag"},
        "height": {"kind": "num", "low": 1.0, "high": 2.5},
    },
}
OPTIONS = {"epsilon": 2.0, "delta": 1e-6, "random_state": 0, "bins": 5}
WIDE = {"columns": {name: {"kind": "num", "low": 0.0, "high": 1.5} for name in "abc"}}


def table(rows=N, seed=0):
    """Sex goes with age, and age with smoking."""
    rng = np.random.default_rng(seed)
    sex = rng.choice(["f", "m"], rows)
    age = np.where(sex == "f", rng.integers(0, 50, rows), rng.integers(50, 100, rows))
    smokes = (rng.random(rows) < np.where(age > 50, 0.8, 0.1)).astype(int)
    return pd.DataFrame(
        {
            "person": np.arange(rows) // 3,
            "sex": sex,
            "age": age,
            "smokes": smokes,
            "height": rng.normal(1.7, 0.1, rows),
        }
    )


@pytest.fixture(scope="module")
def fitted():
    return SyntheticData(SCHEMA, **OPTIONS).fit(table())


def test_samples_look_like_the_table_in_its_own_values(fitted):
    rows = fitted.sample(4000, random_state=1)
    assert list(rows.columns) == ["sex", "age", "smokes", "height"]
    assert set(rows["sex"].dropna()) <= {"f", "m"}
    assert set(rows["smokes"].dropna()) <= {0, 1}
    assert rows["age"].dropna().between(0, 99).all()
    assert str(rows["age"].dtype) == "Int64"
    assert rows["height"].dropna().between(1.0, 2.5).all()
    men = rows[rows["sex"] == "m"]
    assert (men["age"] >= 40).mean() > 0.9
    assert men["smokes"].mean() > 0.65
    assert rows[rows["sex"] == "f"]["smokes"].mean() < 0.3
    again = fitted.sample(4000, random_state=1)
    pd.testing.assert_frame_equal(rows, again)
    assert len(fitted.sample()) == N
    assert len(fitted.sample(0)) == 0
    assert privopt.SyntheticData is SyntheticData


def test_marginals_have_error_bars_that_hold_the_truth(fitted):
    found = fitted.marginal(["sex", "smokes"])
    truth = pd.crosstab(table()["sex"], table()["smokes"], normalize=True)
    assert list(found.columns) == ["sex", "smokes", "share", "released", "stddev"]
    assert len(found) == 9
    assert found["share"].sum() == pytest.approx(1.0)
    for row in found.itertuples():
        exact = truth.loc[row.sex, int(row.smokes)] if "missing" not in (row.sex, row.smokes) else 0.0
        assert abs(row.released - exact) <= 5 * row.stddev
        assert abs(row.share - exact) <= 0.05
    single = fitted.marginal("age")
    assert single["age"].tolist()[-1] == "missing"
    assert 0 < single["stddev"].iloc[0] < 0.05


def test_the_error_is_released_and_what_it_says(fitted):
    error, coded = fitted.error_, fitted.coding_.encode(table())
    work = Workload.ways(fitted.coding_.levels, 2)
    exact = []
    for columns in work.sets:
        levels = [work.levels[column] for column in columns]
        counts = np.bincount(
            coded[:, columns[0]] + levels[0] * coded[:, columns[1]], minlength=math.prod(levels)
        )
        exact.append(np.abs(counts / N - fitted.model_.marginal(columns)).sum() / 2)
    assert error.released
    assert abs(error.value - np.mean(exact)) <= 5 * error.stddev
    assert "total variation" in error.meaning


def test_plan_and_report_say_the_price(fitted):
    plan = SyntheticData(SCHEMA, **OPTIONS).plan(n=N)
    assert plan.event == fitted.plan_.event
    assert plan.settings == fitted.plan_.settings
    report = fitted.privacy_
    assert report.epsilon <= 2.0
    assert not report.is_private  # seeded
    text = json.dumps(report.to_dict())
    assert "public bins" in text
    assert "sex = f" in text
    assert len(report.pictures) >= 2
    assert "<svg" in report.to_html()


def test_a_configured_method_and_a_predicted_error_are_taken():
    method = AdaptiveMarginals(rounds=2, choices=1, components=10, steps=10)
    data = SyntheticData(SCHEMA, [("sex", "age"), "smokes"], method=method, error_share=0.0, **OPTIONS)
    data.fit(pa.Table.from_pandas(table(400)))
    assert not data.error_.released
    assert data.plan_.releases == 4 + 2 * 2


def test_queries_are_conditions_on_columns():
    coding = TableCoding.of(Schema.from_json(SCHEMA), N, columns=["sex", "age"], bins=2)
    work = asked_workload([{"sex": "f"}, {"sex": "m", "age": (0, 24)}, {"age": (50, 99)}], coding)
    assert coding.levels == (3, 3)
    expected = [[1, 0, 0] * 3, [0, 0.5, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 0, 0, 0]]
    np.testing.assert_allclose(work.queries[:2], expected[:2])
    np.testing.assert_allclose(work.queries[2], expected[2])
    data = SyntheticData(SCHEMA, [{"sex": "f"}, {"age": (0, 24)}], columns=["sex", "age"], **OPTIONS).fit(
        table()
    )
    assert data.plan_.public.levels == (3, 6)
    assert data.error_.value <= 0.05
    assert "queries" in data.error_.meaning


def test_users_are_protected_whole_by_keys_or_by_names():
    rows = table(900)
    for groups in (rows["person"].to_numpy(), "person", ("person",)):
        data = SyntheticData(SCHEMA, "1-way", max_records_per_user=3, **OPTIONS).fit(rows, groups=groups)
        assert data.plan_.public.unit == "user"
        assert data.plan_.public.n == 300
        assert data.marginal("sex")["share"].sum() == pytest.approx(1.0)
    assert len(data.sample()) == 300


def test_users_weigh_alike_unless_asked_and_plans_know_what_else_costs():
    assert SyntheticData(SCHEMA).user_weighting == "user"
    rows = table(900)
    noise = {}
    for weighting in ("user", "sqrt", "record"):
        data = SyntheticData(
            SCHEMA,
            "1-way",
            method="gaussian-marginals",
            user_weighting=weighting,
            max_records_per_user=48,
            typical_records=3,
            **OPTIONS | {"epsilon": 20.0},
        )
        planned = data.plan(n=300, by_user=True).indicators["cell_noise"].value
        shown = data.fit(rows, groups="person").marginal("sex")["stddev"].iloc[0]
        assert shown == pytest.approx(planned, rel=0.2)
        noise[weighting] = planned
    assert noise["sqrt"] == pytest.approx(4 * noise["user"])
    assert noise["record"] == pytest.approx(16 * noise["user"])


def test_a_loud_error_is_noticed_before_it_is_paid_for():
    for n, loud in [(40, True), (40_000, False)]:
        plan = SyntheticData(SCHEMA, **OPTIONS | {"epsilon": 0.5}).plan(n=n)
        assert any("error of the model will be measured with noise" in one for one in plan.notices) == loud


@pytest.mark.audit
def test_of_a_file_only_the_described_columns_are_read(tmp_path):
    rows = table(500)
    rows.assign(diary="never read").to_csv(tmp_path / "table.csv", index=False)
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"people": SCHEMA}))
    data = SyntheticData(schema, schema_name="people", **OPTIONS).fit(tmp_path / "table.csv")
    assert data.plan_.public.n == 500
    assert data.sample(10)["age"].notna().any()
    by_name = SyntheticData(SCHEMA, **OPTIONS).fit({name: list(rows[name]) for name in rows})
    np.testing.assert_allclose(by_name.marginal("sex")["share"], data.marginal("sex")["share"], atol=0.05)


@pytest.mark.later("None")
@pytest.mark.parametrize("groups", [None, "who"])
def test_a_table_in_files_is_coded_block_by_block_as_in_one_piece(groups, tmp_path, monkeypatch):
    rows = table(300).assign(who=np.arange(300) % 97)
    schema = {**SCHEMA, "columns": {**SCHEMA["columns"], "who": {"kind": "id"}}}
    for part in range(3):
        rows[100 * part : 100 * (part + 1)].to_parquet(tmp_path / f"{part}.parquet")
    monkeypatch.setattr("privopt.tables.table.MOST_BLOCK", 64)
    in_files = Table.open(tmp_path / "*.parquet", schema)
    coding = TableCoding.of(Schema.from_json(schema), 300)
    codes = table_source.codes_of(in_files, coding, 300)
    assert np.array_equal(codes, coding.encode(rows))
    options = OPTIONS | {"random_state": 1}
    one = SyntheticData(schema, **options).fit(in_files, groups=groups)
    other = SyntheticData(schema, **options).fit(rows, groups=groups)
    assert one.plan_.public == other.plan_.public
    pd.testing.assert_frame_equal(one.sample(50, random_state=2), other.sample(50, random_state=2))


def test_a_table_to_be_kept_elsewhere_is_refused_since_its_codes_are_in_memory(tmp_path):
    table(40).to_parquet(tmp_path / "table.parquet")
    for engine in ("stream", "ray"):
        in_files = Table.open(tmp_path / "table.parquet", SCHEMA, engine=engine)
        with pytest.raises(ArgumentError, match=r"in the memory of this process, not by engine="):
            SyntheticData(SCHEMA, **OPTIONS).fit(in_files)


def test_no_value_raises_or_warns_and_a_neighbour_gives_the_same_shapes():
    rows = table(200).astype(object)
    rows.iloc[0] = [None, "unknown", math.nan, 1e300, -math.inf]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = SyntheticData(SCHEMA, relation="add-or-remove-one", n=250, **OPTIONS).fit(rows)
    assert data.plan_.public.n == 250
    assert data.marginal("sex")["share"].sum() == pytest.approx(1.0)
    assert len(data.sample(5)) == 5


def test_without_privacy_the_marginals_are_exact():
    data = SyntheticData(SCHEMA, epsilon=math.inf, delta=0.0, bins=3, method="gaussian-marginals").fit(
        table(500)
    )
    found = data.marginal(["sex"])
    truth = table(500)["sex"].value_counts(normalize=True)
    assert found["stddev"].eq(0).all()
    np.testing.assert_allclose(found["released"][:2], truth[["f", "m"]])
    np.testing.assert_allclose(found["share"][:2], truth[["f", "m"]], atol=1e-3)


@pytest.mark.parametrize("method", ["query-game", "query-game-ml"])
@pytest.mark.parametrize("share", [0.0, 0.01])
def test_a_game_without_privacy_is_refused(method, share):
    options = OPTIONS | {"epsilon": math.inf}
    with pytest.raises(ValueError, match=f"{method} needs a finite epsilon"):
        SyntheticData(SCHEMA, method=method, error_share=share, **options).fit(table(40))


def test_a_methods_own_noise_is_used_or_refused():
    fitted = SyntheticData(SCHEMA, "1-way", method=AdaptiveMarginals(noise_multiplier=30.0), **OPTIONS)
    assert fitted.fit(table(100)).privacy_.epsilon < 0.3
    with pytest.raises(BudgetExceeded, match="epsilon"):
        SyntheticData(SCHEMA, method=AdaptiveMarginals(noise_multiplier=0.1), **OPTIONS).fit(table(100))


def test_an_account_pays_before_the_data_is_read():
    account = privopt.Account(1.0, 1e-5)
    data = SyntheticData(SCHEMA, account=account, **OPTIONS)
    with pytest.raises(BudgetExceeded, match="would cost"):
        data.fit(table(300))
    SyntheticData(SCHEMA, account=account, **(OPTIONS | {"epsilon": 0.5})).fit(table(300))
    assert account.remaining_epsilon() < 0.9
    assert clone(data).account is account


class Telling:
    """A cell that says what it holds when it is asked for an array."""

    def __array__(self, *arguments, **options):
        raise RuntimeError("secret")


def test_a_cell_of_a_list_is_not_asked_for_an_array():
    columns = {name: list(values) for name, values in table(40).drop(columns="person").items()}
    for odd in (Telling(), [1, 2], np.zeros(3)):
        column = table_source.opened(columns | {"age": [odd, *columns["age"][1:]]}, Schema.from_json(SCHEMA))[
            "age"
        ]
        assert column[0] is odd
        data = SyntheticData(SCHEMA, "1-way", **OPTIONS).fit(columns | {"age": [odd, *columns["age"][1:]]})
        assert len(data.sample(3)) == 3


def test_samples_do_not_show_how_the_table_was_stored():
    """One missing value among whole numbers makes pandas store all of them as floats."""
    rows = table(300)
    whole, gap = rows.copy(), rows.copy()
    gap.loc[0, ["age", "smokes"]] = np.nan
    assert whole["age"].dtype != gap["age"].dtype
    fits = [SyntheticData(SCHEMA, **(OPTIONS | {"epsilon": 0.01})).fit(one) for one in (whole, gap)]
    codes = fits[0].model_.sample(50, np.random.default_rng(0))
    samples = [fit.coding_.decode(codes, np.random.default_rng(1)) for fit in fits]
    pd.testing.assert_frame_equal(*samples)
    pd.testing.assert_series_equal(*(fit.sample(5).dtypes for fit in fits))


def test_a_fitted_one_is_pickled_with_its_model(fitted):
    again = pickle.loads(pickle.dumps(fitted))
    pd.testing.assert_frame_equal(again.sample(20, random_state=2), fitted.sample(20, random_state=2))
    pd.testing.assert_frame_equal(again.marginal("sex"), fitted.marginal("sex"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epsilon": None}, "epsilon is missing"),
        ({"delta": None}, "delta is missing"),
        ({"delta": 0.0}, "delta must be above 0"),
        ({"relation": "add-or-remove-one"}, "n is missing"),
        ({"relation": "swap"}, "relation must be"),
        ({"engine": "pgm"}, "engine must be None or 'mbi', got 'pgm'"),
        ({"error_share": 1.0}, "error_share must be at least 0 and below 1"),
        ({"workload": "4-way"}, "workload must be '1-way'"),
        ({"workload": []}, "workload must be"),
        ({"workload": [("sex", "pay")]}, "no column 'pay' here"),
        ({"workload": [("sex", "sex")]}, "names a column twice"),
        ({"workload": [{}]}, "at least one column"),
        ({"workload": [{"sex": "x"}]}, "no level 'x'"),
        ({"workload": [{"sex": "f"}, ("sex",)]}, "not both"),
        ({"workload": [3]}, "a name or a tuple of names"),
        ({"workload": Workload.ways((2, 2), 1)}, "make it of the same"),
        ({"columns": ["pay"]}, "no column 'pay'"),
        ({"columns": ["person"]}, "of kind 'id'"),
        ({"schema": {"columns": {"a": {"kind": "cat", "levels": []}}}}, "non-empty list of levels"),
        ({"method": "magic"}, "magic"),
        ({"max_records_per_user": 0}, "max_records_per_user must be"),
        (
            {"schema": WIDE, "workload": "3-way", "bins": 4000},
            "GiB of memory",
        ),
    ],
)
def test_bad_arguments_get_one_sentence_before_data_is_read(options, words):
    arguments = {"schema": SCHEMA, **OPTIONS, **options}
    data = SyntheticData(arguments.pop("schema"), arguments.pop("workload", "2-way"), **arguments)
    with pytest.raises((ValueError, TypeError), match=words):
        data.plan(n=N)
    with pytest.raises((ValueError, TypeError), match=words):
        data.fit(table(20))


def test_a_table_must_have_the_columns_and_a_sample_a_size(fitted):
    with pytest.raises(PrivoptError, match="no column 'age'"):
        SyntheticData(SCHEMA, **OPTIONS).fit(table(20).drop(columns="age"))
    with pytest.raises(TypeError, match="named columns"):
        SyntheticData(SCHEMA, **OPTIONS).fit(np.zeros((20, 4)))
    with pytest.raises(ValueError, match="n is missing"):
        SyntheticData(SCHEMA, **OPTIONS).plan()
    with pytest.raises(ValueError, match="n_rows must be a whole number"):
        fitted.sample(-1)
    with pytest.raises(PrivoptError, match="no column 'pay'"):
        fitted.marginal("pay")
    with pytest.raises(ValueError, match="at least one column"):
        fitted.marginal([])
    with pytest.raises(ValueError, match="not fitted"):
        SyntheticData(SCHEMA).sample(3)


def test_private_pgm_is_refused_where_it_cannot_be_fitted(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"install the extra, pip install 'privopt\[mbi\]'"):
        SyntheticData(SCHEMA, engine="mbi", **OPTIONS).plan(n=N)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    with pytest.raises(ValueError, match="Private-PGM fits released marginals"):
        SyntheticData(SCHEMA, [{"sex": "f"}], columns=["sex"], engine="mbi", **OPTIONS).plan(n=N)


class OfItsOwnWorkload(GaussianMarginals):
    """Releases one marginal that nobody asked it for, and nothing else."""

    def run(self, curator, workload):
        own = Workload(workload.levels, sets=((1,),))
        released = np.asarray(curator.release(MarginalMeans(workload=own), self.gaussian(1.0)))
        weights = np.tile(
            np.clip(released, 1e-9, None)[None, :, None], (workload.levels[2], 1, workload.levels[0])
        )
        return Outcome(self.model(workload.levels, (weights / weights.sum()).ravel()), Status.FINISHED)

    def model(self, levels, weights):
        return Histogram(levels, weights)


class WithoutMarginals(OfItsOwnWorkload):
    """Its model can be sampled, and says no marginal."""

    def model(self, levels, weights):
        class Model(Histogram):
            def marginal(self, columns):
                raise LookupError("hush")

        return Model(levels, weights)


def of_three_columns(method, **options):
    columns = ["sex", "age", "smokes"]
    return SyntheticData(SCHEMA, **OPTIONS, columns=columns, method=method, **options)


@pytest.mark.parametrize("error_share", [0.0, 0.01])
def test_a_synthesizer_of_ones_own_releases_what_it_likes(error_share):
    """The marginals are those of the columns that it named, whatever the workload of the fit."""
    given = table()
    data = of_three_columns(OfItsOwnWorkload(), error_share=error_share).fit(given)
    (measured,) = data._measured
    assert measured.columns == (1,)
    found = data.marginal("age")
    np.testing.assert_allclose(found["released"], found["share"], atol=0.01)
    shares = np.histogram(given["age"], 5, (0, 99))[0] / len(given)
    np.testing.assert_allclose(found["released"][:5], shares, atol=0.05)
    assert data.marginal("sex")["released"].isna().all()


class OutOfPlan(OfItsOwnWorkload):
    """Releases with less noise than it announces."""

    def gaussian(self, share):
        return Gaussian(0.5 * super().gaussian(share).noise_multiplier)

    def event(self, public):
        return super().gaussian(1.0).event()


@pytest.mark.parametrize(
    ("method", "refusal", "sentence"),
    [
        (WithoutMarginals(), LookupError, "hush"),
        (Finishing(inner=WithoutMarginals(), share=0.1), LookupError, "hush"),
        (OutOfPlan(), PlanMismatch, "asked for 1 x"),
    ],
    ids=["no marginals", "no marginals, finished", "out of plan"],
)
def test_a_synthesizer_that_lacks_what_is_asked_of_it_is_refused_before_anything_is_paid(
    method, refusal, sentence
):
    account = privopt.Account(3.0, 1e-5)
    with pytest.raises(refusal, match=sentence):
        of_three_columns(method, account=account).fit(table())
    assert "nothing was spent yet" in str(account)


@pytest.mark.parametrize("as_table", [False, True])
@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_flags_of_a_text_come_back_in_the_words_of_the_schema(
    name: str, as_table: bool, tmp_path: Path
) -> None:
    spelt = {"smokes": {"kind": "flag", "true": "ja", "false": "nein"}, "ill": {"kind": "flag"}}
    rows = pd.DataFrame({"smokes": ["ja", "nein"] * 50, "ill": [True, False] * 50})
    file = tmp_path / name
    rows.to_csv(file, index=False) if name.endswith("csv") else rows.to_parquet(file)
    given = Table.open(file, {"columns": spelt}) if as_table else file
    sample = SyntheticData({"columns": spelt}, "1-way", epsilon=9.0, delta=1e-6).fit(given).sample(100)
    assert set(sample["smokes"].dropna()) == {"ja", "nein"}
    assert str(sample["ill"].dtype) == ("Int64" if name.endswith("csv") else "boolean")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"smokes": [0, 1], "ill": [1]}, "columns of the dictionary have different lengths"),
        ({"smokes": 1, "ill": 2}, "A column of the dictionary is no list"),
        ({"smokes": "01", "ill": [1, 0]}, "A column of the dictionary is no list"),
    ],
)
def test_a_dictionary_that_is_no_table_is_refused(given: dict[str, Any], sentence: str) -> None:
    data = SyntheticData(
        {"columns": {name: {"kind": "flag"} for name in given}}, epsilon=1.0, delta=1e-6, n=2
    )
    with pytest.raises(TableError, match=sentence):
        data.fit(given)
    with pytest.raises(TableError, match=sentence):
        data.set_params(n=None).fit(given)


def test_a_column_of_users_that_is_not_there_is_named_by_groups() -> None:
    data = SyntheticData({"columns": {"smokes": {"kind": "flag"}}}, epsilon=1.0, delta=1e-6)
    with pytest.raises(TableError, match="no column 'who', which groups names: did you mean 'Who'"):
        data.fit(pd.DataFrame({"smokes": [0, 1], "Who": [1, 2]}), groups="who")


@pytest.mark.parametrize("last", [2**60 + 5, None])
def test_columns_of_a_dictionary_are_read_alike_whatever_holds_them_and_whatever_is_missing(
    last: int | None,
) -> None:
    polars = pytest.importorskip("polars")
    number = {"kind": "num", "low": 2**60, "high": 2**60 + 7, "integer": True}
    schema = Schema.from_json({"columns": {"a": number, "b": {"kind": "cat", "levels": ["x", "y"]}}})
    coding = TableCoding.of(schema, 1000)
    a, b = [2**60 + 1, 2**60 + 2, last], ["x", "y", "x"]
    masked = np.ma.array([2**60 + 1, 2**60 + 2, 2**60 + 5], mask=[False, False, last is None])
    for given in (
        {"a": a, "b": b},
        {"a": pa.array(a), "b": pa.array(b)},
        {"a": pa.chunked_array([a]), "b": pa.array(b).dictionary_encode()},
        {"a": polars.Series(a), "b": polars.Series(b, dtype=polars.Categorical)},
        {"a": pd.Series(a, dtype="Int64"), "b": np.array(b)},
        {"a": masked, "b": b},
    ):
        codes = table_source.codes_of(table_source.opened(given, schema), coding, 3)
        assert codes.tolist() == [[1, 0], [2, 1], [8 if last is None else 5, 0]]


@pytest.mark.at_once("True-replace-one")
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
@pytest.mark.parametrize("required", [False, True])
def test_columns_with_cells_that_cannot_be_read_are_named_at_no_further_price(
    relation: str, required: bool
) -> None:
    draw, rows = np.random.default_rng(0), 3_000
    frame = pd.DataFrame(
        {
            "age": np.where(np.arange(rows) % 3, draw.integers(0, 90, rows), np.nan),
            "sex": np.where(draw.random(rows) < 0.5, "Female", "Male"),
            "smokes": draw.integers(0, 2, rows),
        }
    )
    columns: dict[str, Any] = {
        "age": {"kind": "num", "low": 0, "high": 90},
        "sex": {"kind": "cat", "levels": ["f", "m"], "required": required},
        "smokes": {"kind": "flag"},
    }
    data = SyntheticData(
        {"columns": columns}, epsilon=2.0, delta=1e-6, relation=relation, n=4_000, random_state=1
    )
    announced = data.plan()
    report = data.fit(frame).privacy_
    assert report.event == announced.event
    found = report.findings["unread_cells"]
    assert found.value == (1 if required else 2)
    assert re.search(r"could be read: 6\d % \(± 0\.\d\) of age", found.meaning)
    assert ("% (± " in found.meaning.split("of age")[1]) == (not required)
    assert "smokes" not in found.meaning
    for shown in (str(report), report.to_html(), json.dumps(report.to_dict(), ensure_ascii=False)):
        assert "of the cells only these shares could be read" in " ".join(shown.split()).replace("Of", "of")
    whole = data.fit(frame.assign(age=30, sex="f")).privacy_
    assert "unread_cells" not in whole.findings
