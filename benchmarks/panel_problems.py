"""The problems of the panel: many targets, sizes and base rates of many tables, in two halves drawn by table.

One half is there to choose on, the other to judge on. The halves were drawn before the first run, within strata of
tables that are alike, by `drawn_halves`; they are written down in `CHOOSE` and `JUDGE` and never change.
"""

import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy import sparse
from sklearn import datasets as bundled

from benchmarks.datasets import RECIPES, SHARED_DATA
from benchmarks.results import SCRATCH
from privopt.tables import Schema, TabularEncoder, read_table, user_keys

Kind = Literal["two classes", "classes", "numbers", "counts"]
Half = Literal["choose", "judge"]

STRATA = (
    ("adult", "covertype", "fars", "kdd99"),
    ("compas", "fair", "randhie", "german"),
    ("california", "diabetes"),
    ("clickbait", "hiva", "movietweetings", "w8a"),
    ("digits", "mnist"),
    ("anes96", "breast_cancer"),
)
SEED = 1326  # of the halves and of every shuffle
TEST_SHARE = 0.2
HASHED = 500  # the columns that the words of clickbait are folded into


def drawn_halves() -> dict[str, Half]:
    """The half of every table: within each stratum a shuffle, the first half of which is there to choose on."""
    generator = np.random.default_rng(SEED)
    halves: dict[str, Half] = {}
    for stratum in STRATA:
        order = generator.permutation(len(stratum))
        halves |= {
            stratum[k]: "choose" if place < len(stratum) // 2 else "judge" for place, k in enumerate(order)
        }
    return halves


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is predicted: a column as it is, or whether it passes a test.

    Attributes:
        column: its name.
        above: the number that it must exceed; None for no such test.
        among: the values one of which it must have; None for no such test.
    """

    column: str
    above: float | None = None
    among: tuple[Any, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class PanelProblem:
    """One problem.

    Attributes:
        name: the table, then what is predicted.
        table: the table.
        kind: what the target is.
        target: what is predicted.
        exclude: columns that say the target and are no features.
        only: the columns that are features, if not all.
        rows: the most training rows.
        part: the share of them that is kept.
        ones: the share of ones, reached by leaving out rows of class 1; None for what the table has.
        users: whether a unit is a user.
    """

    name: str
    table: str
    kind: Kind
    target: Target
    exclude: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None
    rows: int = 20_000
    part: float = 1.0
    ones: float | None = None
    users: bool = False

    @property
    def half(self) -> Half:
        """Which half its table belongs to."""
        return HALVES[self.table]


@dataclass(frozen=True, kw_only=True, eq=False)
class PanelArrays:
    """The arrays of a problem.

    Attributes:
        features: encoded features within [-1, 1], dense float32, (n, d).
        targets: codes from 0, numbers scaled to [-1, 1], or counts.
        test_features: of the test rows.
        test_targets: of the test rows.
        classes: how many classes there are; 0 for numbers and counts.
        most: the public bound of a count.
        groups: the user of each training row, or None.
    """

    features: NDArray[np.float32]
    targets: NDArray[np.float64]
    test_features: NDArray[np.float32]
    test_targets: NDArray[np.float64]
    classes: int
    most: float
    groups: NDArray[np.int64] | None = None


HALVES = drawn_halves()
CHOOSE = tuple(sorted(table for table, half in HALVES.items() if half == "choose"))
JUDGE = tuple(sorted(table for table, half in HALVES.items() if half == "judge"))


def _problems() -> tuple[PanelProblem, ...]:
    found: list[PanelProblem] = []

    def add(table: str, name: str, column: str, kind: Kind = "two classes", /, **options: Any) -> None:
        target = Target(column=column, above=options.pop("above", None), among=options.pop("among", None))
        found.append(PanelProblem(name=f"{table}: {name}", table=table, kind=kind, target=target, **options))

    add("adult", "income", "target")
    add("adult", "income, n/4", "target", part=1 / 4)
    add("adult", "income, n/16", "target", part=1 / 16)
    add("adult", "income, 1 %", "target", ones=0.01)
    add("adult", "income, 0.2 %", "target", ones=0.002)
    add("adult", "hours above 40", "hours_per_week", above=40)
    add("adult", "female", "sex", among=("Female",), exclude=("relationship",))
    add("adult", "capital gain", "capital_gain", above=0)
    add(
        "adult",
        "six columns",
        "target",
        only=("age", "education_num", "hours_per_week", "sex", "capital_gain", "capital_loss"),
    )
    add("adult", "hours", "hours_per_week", "numbers")
    add("adult", "age, n/4", "age", "numbers", part=1 / 4)
    add("covertype", "second cover", "target")
    add("covertype", "second cover, n/4", "target", part=1 / 4)
    add("covertype", "second cover, n/16", "target", part=1 / 16)
    add("covertype", "third cover", "cover", among=("3",))
    add("covertype", "willow", "cover", among=("4",))
    add("covertype", "terrain only", "target", exclude=("soil", "wilderness"))
    add("covertype", "cover", "cover", "classes")
    add("covertype", "elevation", "elevation", "numbers")
    add("fars", "fatal", "target")
    add("fars", "fatal, n/4", "target", part=1 / 4)
    add("fars", "fatal, n/16", "target", part=1 / 16)
    add("fars", "fatal, 5 %", "target", ones=0.05)
    add(
        "fars",
        "drugs",
        "police_reported_drug_involvement",
        among=("Drugs_Involved",),
        exclude=(
            "method_of_drug_determination",
            "drug_test_type__1_of_3",
            "drug_test_results__1_of_3",
            "drug_test_type__2_of_3",
            "drug_test_results__2_of_3",
            "drug_test_type__3_of_3",
            "drug_test_results__3_of_3",
        ),
    )
    add("fars", "female", "sex", among=("Female",))
    add("fars", "severity", "injury_severity", "classes")
    add("fars", "age", "age", "numbers")
    add("kdd99", "attack", "target")
    add("kdd99", "attack, n/4", "target", part=1 / 4)
    add("kdd99", "attack, n/16", "target", part=1 / 16)
    add("kdd99", "attack, 1 %", "target", ones=0.01)
    add("kdd99", "logged in", "logged_in", exclude=("is_guest_login",))
    add("compas", "re-arrest", "target")
    add("compas", "re-arrest, n/4", "target", part=1 / 4)
    add("compas", "female", "sex", among=("Female",))
    add("compas", "African-American", "race", among=("African-American",))
    add("compas", "felony, 5 %", "juv_fel_count", above=0)
    add("compas", "priors", "priors_count", "counts")
    add("fair", "any affair", "affairs", above=0)
    add("fair", "any affair, n/4", "affairs", above=0, part=1 / 4)
    add("fair", "children", "children", "counts", exclude=("affairs",))
    add("fair", "age", "age", "numbers", exclude=("affairs",))
    add("german", "bad", "target")
    add("german", "telephone", "telephone", among=("A192",))
    add("randhie", "any spending", "binexp")
    add("randhie", "any spending, n/4", "binexp", part=1 / 4)
    add("randhie", "any spending, n/16", "binexp", part=1 / 16)
    add("randhie", "admitted", "totadm", above=0)
    add("randhie", "many visits", "mdvis", above=10)
    add("randhie", "female", "female", exclude=("fchild",))
    add("randhie", "any spending, by user", "binexp", users=True)
    add("randhie", "visits", "mdvis", "counts")
    add("randhie", "admissions", "totadm", "counts")
    add("randhie", "spending", "lnmeddol", "numbers")
    add("randhie", "mental health, n/4", "mhi", "numbers", part=1 / 4)
    add("california", "above 180 000", "median_house_value", above=180_000)
    add("california", "above 180 000, n/4", "median_house_value", above=180_000, part=1 / 4)
    add("california", "above 180 000, n/16", "median_house_value", above=180_000, part=1 / 16)
    add("california", "above 450 000", "median_house_value", above=450_000)
    add("california", "inland", "ocean_proximity", among=("INLAND",), exclude=("median_house_value",))
    add("california", "value", "median_house_value", "numbers")
    add("california", "value, n/8", "median_house_value", "numbers", part=1 / 8)
    add("diabetes", "progression", "target", "numbers")
    add("diabetes", "above 140", "target", above=140)
    add("clickbait", "click-bait", "target")
    add("clickbait", "click-bait, n/4", "target", part=1 / 4)
    add("clickbait", "click-bait, 1 %", "target", ones=0.01)
    add("hiva", "active", "target", rows=3_000)
    add("movietweetings", "liked", "target")
    add("movietweetings", "liked, n/8", "target", part=1 / 8)
    add("movietweetings", "full marks", "rating", above=9)
    add("movietweetings", "low marks", "rating", among=(0, 1, 2, 3))
    add("movietweetings", "drama", "g_drama")
    add("movietweetings", "liked, by user", "target", users=True)
    add("movietweetings", "rating", "rating", "numbers")
    add("w8a", "page", "target")
    add("w8a", "page, n/4", "target", part=1 / 4)
    add("w8a", "page, 0.5 %", "target", ones=0.005)
    add("digits", "digit", "target", "classes")
    add("digits", "even", "target", among=(0, 2, 4, 6, 8))
    add("mnist", "digit", "target", "classes", rows=10_000)
    add("mnist", "zero", "target", among=("0",), rows=10_000)
    add("mnist", "at least five", "target", among=("5", "6", "7", "8", "9"), rows=10_000)
    add("anes96", "vote", "vote", above=0)
    add("anes96", "party", "PID", "numbers", exclude=("vote",))
    add("breast_cancer", "benign", "target", above=0)
    return tuple(found)


PROBLEMS = _problems()


def arrays(problem: PanelProblem, shared: Path = SHARED_DATA, kept: Path = SCRATCH) -> PanelArrays:
    """The arrays of a problem; kept on disk after the first time."""
    path = kept / f"panel-{hashlib.sha256(repr(problem).encode()).hexdigest()[:16]}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        found = _arrays(problem, shared)
        fields = {name: value for name, value in vars(found).items() if value is not None}
        partial = path.with_suffix(f".{id(found)}.npz")
        np.savez(partial, **fields)
        partial.replace(path)
    with np.load(path) as stored:
        read = {name: stored[name] for name in stored.files}
    return PanelArrays(**(read | {"classes": int(read["classes"]), "most": float(read["most"])}))


def _arrays(problem: PanelProblem, shared: Path) -> PanelArrays:
    features, values, low, high, groups = _table(problem, shared)
    recorded = np.isfinite(values) if values.dtype.kind == "f" else np.ones(len(values), bool)
    target, classes, most = _targets(problem, values, low, high)
    generator = np.random.default_rng(SEED)
    order = generator.permutation(len(values))
    order = order[recorded[order]]
    if problem.ones is not None:
        order = _thinned(order, target, problem.ones, generator)
    if groups is not None and problem.users:
        users = generator.permutation(int(groups.max()) + 1)
        tested = np.isin(groups[order], users[: round(TEST_SHARE * len(users))])
        train, test = order[~tested], order[tested]
    else:
        cut = min(round((1.0 - TEST_SHARE) * len(order)), problem.rows)
        train, test = order[:cut], order[cut : cut + 10_000]
        groups = None
    train = train[: min(problem.rows, round(problem.part * len(train)))]
    dense = (
        (lambda rows: features[rows].toarray())
        if sparse.issparse(features)
        else (lambda rows: features[rows])
    )
    return PanelArrays(
        features=np.asarray(dense(train), np.float32),
        targets=target[train],
        test_features=np.asarray(dense(test), np.float32),
        test_targets=target[test],
        classes=classes,
        most=most,
        groups=None if groups is None else groups[train],
    )


def _targets(
    problem: PanelProblem, values: NDArray[Any], low: float, high: float
) -> tuple[NDArray[np.float64], int, float]:
    """Codes, numbers in [-1, 1] or counts; the number of classes; the bound of a count."""
    target = problem.target
    if target.above is not None:
        return (values > target.above).astype(np.float64), 2, 0.0
    if target.among is not None:
        return np.isin(values, np.asarray(target.among, values.dtype)).astype(np.float64), 2, 0.0
    if problem.kind in ("two classes", "classes"):
        labels, codes = np.unique(values, return_inverse=True)
        return codes.astype(np.float64), len(labels), 0.0
    clipped = np.clip(values.astype(np.float64), low, high)
    if problem.kind == "counts":
        return clipped, 0, high
    return 2.0 * (clipped - low) / (high - low) - 1.0, 0, 0.0


def _thinned(
    order: NDArray[np.int64], target: NDArray[np.float64], share: float, generator: np.random.Generator
) -> NDArray[np.int64]:
    """The rows without most of class 1, so that it is left with this share."""
    ones = np.flatnonzero(target[order] == 1)
    kept = round(share / (1.0 - share) * (len(order) - len(ones)))
    return np.delete(order, generator.permutation(ones)[kept:])


def _table(
    problem: PanelProblem, shared: Path
) -> tuple[Any, NDArray[Any], float, float, NDArray[np.int64] | None]:
    """All rows of a table encoded; the column of the target with its public bounds; users."""
    if problem.table in BUNDLED:
        columns = BUNDLED[problem.table]()
        values, low, high = columns[problem.target.column]
        names = [name for name in columns if name not in (problem.target.column, "target", *problem.exclude)]
        scaled = [
            2.0 * (np.clip(v, a, b) - a) / (b - a) - 1.0 for v, a, b in (columns[name] for name in names)
        ]
        return np.stack(scaled, axis=1).astype(np.float32), values, low, high, None
    schema = Schema.from_json(Path(shared) / "schema.json", problem.table)
    column = schema.column(problem.target.column)
    own = column.name in (schema.target, *schema.other_targets)
    exclude = (*RECIPES[problem.table].exclude, *problem.exclude, *(() if own else (column.name,)))
    exclude = tuple(dict.fromkeys(name for name in exclude if name in schema.names))
    encoder = TabularEncoder(schema, features=problem.only, exclude=() if problem.only else exclude)
    table = read_table(Path(shared) / f"{problem.table}.parquet", schema)
    if problem.table == "clickbait":
        active = table.column("active").combine_chunks()
        rows = np.repeat(np.arange(len(active)), np.diff(active.offsets.to_numpy()))
        places = active.flatten().to_numpy() % HASHED
        folded = sparse.csr_array(
            (np.ones(len(rows), np.float32), (rows, places)), shape=(len(active), HASHED)
        )
        folded.data[:] = 1.0
        features: Any = folded
    else:
        features = encoder.fit(table).transform(table)
    raw = table.column(column.name)
    if column.kind == "cat":
        values = np.asarray(raw.cast("string").to_pylist(), dtype=object)
        values = np.where(values == None, "", values).astype(str)  # noqa: E711
    else:
        values = pc.cast(raw, "float64").to_numpy(zero_copy_only=False)
    groups = None if schema.user is None else user_keys(table, schema.user).astype(np.int64)
    low, high = (0.0, 1.0) if column.low is None else (float(column.low), float(column.high))
    return features, values, low, high, groups


Columns = Mapping[str, tuple[NDArray[np.float64], float, float]]


def _bounded(values: Any, low: float, high: float) -> tuple[NDArray[np.float64], float, float]:
    return np.asarray(values, np.float64), low, high


@functools.cache
def _fair() -> Columns:
    """Fair 1978: 6366 women's answers, of statsmodels. Bounds are the questionnaire's scales."""
    from statsmodels.datasets import fair

    table = fair.load_pandas().data
    bounds = {
        "rate_marriage": (1, 5), "age": (16, 45), "yrs_married": (0, 25), "children": (0, 6), "religious": (1, 4),
        "educ": (8, 20), "occupation": (1, 6), "occupation_husb": (1, 6), "affairs": (0, 60),
    }  # fmt: skip
    return {name: _bounded(table[name], *ends) for name, ends in bounds.items()}


@functools.cache
def _anes96() -> Columns:
    """American National Election Study of 1996: 944 answers, of statsmodels. Bounds are the questionnaire's scales."""
    from statsmodels.datasets import anes96

    table = anes96.load_pandas().data
    bounds = {
        "logpopul": (-3, 9), "TVnews": (0, 7), "selfLR": (1, 7), "ClinLR": (1, 7), "DoleLR": (1, 7), "PID": (0, 6),
        "age": (17, 97), "educ": (1, 7), "income": (1, 24), "vote": (0, 1),
    }  # fmt: skip
    return {name: _bounded(table[name], *ends) for name, ends in bounds.items()}


@functools.cache
def _digits() -> Columns:
    """1797 pictures of 8 x 8 pixels, of scikit-learn."""
    data = bundled.load_digits()
    pixels = {
        f"pixel {k}": _bounded(data.data[:, k], -16, 16) for k in range(data.data.shape[1])
    }  # 0 stays 0
    return {**pixels, "target": _bounded(data.target, 0, 9)}


@functools.cache
def _breast_cancer() -> Columns:
    """569 tumours, of scikit-learn. Bounds are round numbers above what its description says of each quantity."""
    data = bundled.load_breast_cancer()
    highest = (30, 40, 200, 3000, 0.2, 0.4, 0.5, 0.25, 0.4, 0.1)
    spread = (3, 5, 25, 600, 0.04, 0.15, 0.4, 0.06, 0.08, 0.03)
    worst = (40, 50, 260, 4500, 0.25, 1.1, 1.3, 0.3, 0.7, 0.21)
    bounds = (*highest, *spread, *worst)
    columns = {
        str(name): _bounded(data.data[:, k], 0, bounds[k]) for k, name in enumerate(data.feature_names)
    }
    return {**columns, "target": _bounded(data.target, 0, 1)}


@functools.cache
def _diabetes() -> Columns:
    """442 patients, of scikit-learn, in their own units. Bounds are plausible ranges of each measurement."""
    data = bundled.load_diabetes(scaled=False)
    bounds = (
        (18, 90),
        (1, 2),
        (15, 50),
        (50, 150),
        (80, 320),
        (30, 260),
        (15, 110),
        (1, 10),
        (3, 6.5),
        (50, 140),
    )
    columns = {str(name): _bounded(data.data[:, k], *bounds[k]) for k, name in enumerate(data.feature_names)}
    return {**columns, "target": _bounded(data.target, 20, 350)}


BUNDLED: Mapping[str, Callable[[], Columns]] = {
    "fair": _fair,
    "anes96": _anes96,
    "digits": _digits,
    "breast_cancer": _breast_cancer,
    "diabetes": _diabetes,
}
