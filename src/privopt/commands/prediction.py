"""`privopt predict`: a released model applied to the rows of a table."""

from pathlib import Path

from privopt.commands import screen
from privopt.commands.mistakes import Mistake
from privopt.commands.model_directory import SavedModel
from privopt.tables import open_table, write_predictions
from privopt.tables.schema import Schema


def run(directory: Path, table: Path, *, output: Path | None) -> None:
    """Write one prediction for each row.

    Raises:
        Mistake, TableError: something that was typed cannot be used.
    """
    if output is None:
        raise Mistake("give --output: the Parquet file to write the predictions to.")
    if output.suffix.lower() not in (".parquet", ".pq"):
        raise Mistake(f"--output {str(output)!r} must end in .parquet: predictions are written as Parquet.")
    if not output.resolve().parent.is_dir():
        raise Mistake(f"--output {str(output)!r} lies in a folder that does not exist.")
    if output.exists() and table.exists() and output.samefile(table):
        raise Mistake(f"--output {str(output)!r} is the table itself: give another file.")
    saved = SavedModel.read(directory)
    features = [block.column for block in saved.encoder.blocks_]
    private_table = open_table(table, Schema.from_json(saved.encoder.schema), columns=features)
    private_features = saved.encoder.transform(private_table)
    estimator = saved.estimator
    probabilities = None
    if hasattr(estimator, "predict_proba"):
        by_class = estimator.predict_proba(private_features)
        probabilities = {label: by_class[:, place] for place, label in enumerate(estimator.classes_)}
    write_predictions(output, estimator.predict(private_features), probabilities=probabilities)
    names = ["prediction", *(f"probability_{label}" for label in probabilities or {})]
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    screen.show_rows(
        screen.console(),
        "Done",
        [
            ("predictions", f"{output}: {private_features.shape[0]:,} rows, {shown}"),
            (
                "mind",
                "The guarantee covers the model; what it predicts for these rows is as private as the rows are.",
            ),
        ],
    )
