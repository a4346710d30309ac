"""What a table in files says for a fit: its encoder, and the arguments that its schema stands for."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import narwhals as nw
import numpy as np
import pandas as pd
from sklearn.utils.validation import check_is_fitted

from privopt.data import cells
from privopt.data.containers import as_frame
from privopt.errors import ArgumentError, ArgumentTypeError
from privopt.later import is_of

if TYPE_CHECKING:
    from privopt.planning.row_length import SourceColumn
    from privopt.tables.encoder import TabularEncoder
    from privopt.tables.schema import TargetEncoding
    from privopt.tables.table import Table

Predicted = TypeVar("Predicted")


def asked_of_a_table(table: Table, y: Any, groups: Any, estimator: Any) -> TabularEncoder:
    """The encoder of a fit to a table, with the estimator's rule for missing cells.

    Raises:
        ArgumentTypeError: targets were given as well.
        ArgumentError: columns were named that the schema says.
    """
    if y is not None:
        raise ArgumentTypeError(
            "y was given beside a table, which holds the target itself: leave y out, and name its column in the schema "
            "or with Table.open(..., target=...)."
        )
    if estimator.indicator is not None:
        raise ArgumentError(
            "indicator was given beside a table, whose schema says which columns may be missing: leave it out, and "
            'give those that are never missing "required": true.'
        )
    if table.missing not in (estimator.missing, "midpoint") and estimator.missing != "midpoint":
        raise ArgumentError(
            f"the table was opened with missing={table.missing!r}, and the model has missing={estimator.missing!r}: "
            "say it once."
        )
    return table.encoder(groups, missing=None if estimator.missing == "midpoint" else estimator.missing)


def arguments_of(table: Table, encoder: TabularEncoder, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that an estimator has and was not given, as the table's schema says them.

    Args:
        table: opened.
        encoder: of its features, each of which lies in the encoder's range.
        given: the estimator's arguments.
    Raises:
        ArgumentTypeError: classes were given, and one of them is no label of the schema's.
        ArgumentError: the target is of a kind that the estimator does not predict.
    """
    target = table.schema.target_encoding(table.target)
    _check_kind(target, given)
    _check_classes(given.get("classes"), target)
    known: dict[str, Any] = {"n": table.n, "classes": target.classes, "target_bounds": target.bounds}
    if given.get("loose_bounds") is None:
        known["bounds"] = encoder.numeric_range
    found = {
        name: value
        for name, value in known.items()
        if name in given and given[name] is None and value is not None
    }
    return found | ({"missing": encoder.missing} if "missing" in given else {})


def _check_encoded(X: Any, encoder: TabularEncoder | None) -> None:
    """Refuse a frame with a table's own columns, which a model of encoded features would take for these."""
    names = None if encoder is None else column_names(X)
    if encoder is None or names is None:
        return
    encoded, raw = list(encoder.get_feature_names_out()), {block.column for block in encoder.blocks_}
    if list(names) != encoded or set(encoded) <= raw:
        raise ArgumentError(
            "X is a data frame, but the model was fitted to a table: give a Table, or the features that the model "
            "learnt from, model.encoder_.transform(X)."
        )


def _check_kind(target: TargetEncoding, given: Mapping[str, Any]) -> None:
    """Refuse a target of another kind than the estimator predicts, where its arguments do not say otherwise."""
    wants_classes = "classes" in given
    if wants_classes and target.classes is None and given["classes"] is None:
        what, needed = "a number", "a flag or a cat"
    elif not wants_classes and target.bounds is None and given.get("target_bounds", ()) is None:
        what, needed = "one of some classes", "a num"
    else:
        return
    raise ArgumentError(
        f"the target {target.column!r} is {what} by the schema, and this model needs {needed}: take another model or "
        "another target."
    )


def _check_classes(classes: Any, target: TargetEncoding) -> None:
    """Refuse classes that no cell of the target can be, since the schema says what its cells may be."""
    if target.classes is None or classes is None or isinstance(classes, str):
        return
    wanted = list(classes)
    found = cells.label_codes(np.fromiter(target.classes, dtype=object, count=len(target.classes)), wanted)
    if set(range(len(wanted))) - set(found.tolist()):
        raise ArgumentTypeError(
            f"classes are {wanted!r}, but the schema says that {target.column!r} is one of {list(target.classes)!r}: "
            "give the labels as stored, or leave classes out."
        )


def source_columns(encoder: TabularEncoder) -> tuple[SourceColumn, ...]:
    """The columns of a table as an encoder lays them out; without sets and pixels, most of which are zero anyway.

    None where a record with a missing cell counts as zero.
    """
    from privopt.planning.row_length import SourceColumn  # late: for tables alone
    from privopt.tables.schema import Schema

    if encoder.missing == "zero":
        return ()
    described = {column.name: column for column in Schema.from_json(encoder.schema).columns}
    return tuple(
        SourceColumn(
            name=column.name,
            start=block.start,
            stop=block.start + column.width,
            missing=encoder.missing_value(column),
            spread=_usual(column.kind, encoder.numeric_range),
        )
        for block in encoder.blocks_
        for column in (described[block.column],)
        if column.kind not in ("set", "pixels") and not column.parts
    )


def _usual(kind: str, numeric_range: tuple[float, float]) -> float:
    """The spread that readable cells usually have about a missing one."""
    from privopt.planning.row_length import FLAG, LEVEL, NUMBER  # late: for tables alone

    if kind in ("num", "date"):
        return NUMBER * (numeric_range[1] / 2 - numeric_range[0] / 2) ** 2
    return FLAG if kind == "flag" else LEVEL


def in_batches(method: Callable[[Any, Any], Predicted]) -> Callable[[Any, Any], Predicted]:
    """Let a method that predicts from features also take a `Table`, whose rows are read block by block."""

    @functools.wraps(method)
    def predicted(self: Any, X: Any) -> Any:
        check_is_fitted(self)
        if not is_of(X, "privopt.tables.table", "Table"):
            _check_encoded(X, self.encoder_)
            return method(self, X)
        encoder = X.encoder() if self.encoder_ is None else self.encoder_
        if encoder.n_features_out_ != self.n_features_in_:
            raise ArgumentError(
                f"the table has {encoder.n_features_out_} encoded features, but the model was fitted with "
                f"{self.n_features_in_}: open it with the same schema and features."
            )
        return np.concatenate([np.asarray(method(self, features)) for features in X.features(encoder)])

    return predicted


# ---- The names of the columns of features that are handed over as a frame ----------------------------------


def column_names(X: Any) -> list[Any] | None:
    """The names of the columns of a data frame of any library that narwhals supports; None for anything else.

    Raises:
        ArgumentError: two columns have one name.
        ArgumentTypeError: the frame is lazy.
    """
    if isinstance(X, pd.DataFrame):
        names = list(X.columns)
    else:
        frame = as_frame(X, "X")
        if isinstance(frame, nw.DataFrame):
            names = list(frame.columns)
        else:
            names = list(
                getattr(X, "column_names", ())
            )  # of Arrow, also where narwhals refuses two of one name
        if not names:
            return None
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise ArgumentError(
            f"X has two columns of the name {twice[0]!r}: rename one of them, so that each coefficient belongs to one "
            "column."
        )
    return names
