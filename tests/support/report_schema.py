"""The published schema of reports, and the check that a report is what it says."""

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema

PATH = Path(__file__).parents[2] / "docs" / "report.schema.json"


@functools.cache
def published() -> Any:
    """The validator."""
    schema = json.loads(PATH.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def require_valid(document: Any) -> None:
    """Fail with the places where a report, or several in one file, departs from the schema."""
    kind = "report" if document.get("format") == "privopt-report" else "reports"
    one = published().evolve(schema={"$ref": f"#/$defs/{kind}", "$defs": published().schema["$defs"]})
    errors = [f"{error.json_path}: {error.message[:300]}" for error in one.iter_errors(document)]
    assert not errors, errors[:5]
