"""Cells that declare no type, read one by one: numbers and labels. PRIVATE.

The type of an array or of a column is the caller's declaration and may be refused. A list and an array of Python
objects declare none, so what one record holds must neither raise, nor warn, nor change how another record is read. Each
of their cells is read by itself, and one that cannot be read counts as missing. A sparse matrix, whose cells are
numbers but whose indices may be wrong, is checked here as well: see `checked_csr`.
"""

import contextlib
import decimal
import itertools
import math
import unicodedata
import warnings
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from privopt.data.containers import arrow_columns, arrow_table
from privopt.errors import ArgumentError, ArgumentTypeError

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating, decimal.Decimal)
_DEEPEST = 10  # tuples in one another, of a label


@contextlib.contextmanager
def unheard() -> Generator[None]:
    """A place in which nothing warns, whatever cells do when they are read one by one."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def can_be_looked_up(private_cell: Any) -> bool:
    """Whether tuples are nested so little that they can be hashed: of many, Python's own hash ends the process."""
    private_level = [private_cell]
    for _ in range(_DEEPEST):
        private_level = [part for each in private_level if isinstance(each, tuple) for part in each]
        if not private_level:
            return True
    return False


def number(private_cell: Any) -> float:
    """One cell as a number; NaN for what is none. A text is a number if it is written as one."""
    try:
        if isinstance(private_cell, str):
            private_word = private_cell.strip().lower()
            if private_word in ("true", "false"):
                return float(private_word == "true")
            return math.nan if "_" in private_word else float(private_word)  # Python would read "1_000"
        return float(private_cell) if isinstance(private_cell, NUMBERS) else _of_no_dimension(private_cell)
    except Exception:  # an integer beyond all floats, a signalling NaN, an object that fails when it is read
        return math.nan


def _of_no_dimension(private_cell: Any) -> float:
    """The number in an array of no dimension; NaN for anything else."""
    if not hasattr(private_cell, "__array__") or np.ma.is_masked(private_cell):
        return math.nan
    private_array = np.asarray(private_cell)
    return (
        float(private_array) if private_array.ndim == 0 and private_array.dtype.kind in "biuf" else math.nan
    )


def numbers(private_cells: Iterable[Any]) -> Floats:
    """Every cell as a number; NaN for what is none."""
    with unheard():
        return np.fromiter((number(private_cell) for private_cell in private_cells), np.float64)


def matrix(features: Any) -> Any:
    """Features as an array or a canonical CSR matrix of the type that they declare; a list is read cell by cell.

    Raises:
        TypeError, ValueError: they declare a type that is none of real numbers, such as objects, texts or complex
            numbers, or the arrays of a sparse matrix do not describe one.
    """
    if sparse.issparse(features):
        _check_numeric(features.dtype, "features")
        return checked_csr(features)
    if isinstance(features, pd.DataFrame):
        return _frame(features)
    if hasattr(features, "column_names") or hasattr(features, "__arrow_c_stream__"):
        private_table = arrow_table(features)
        if private_table is not None:
            return _columns(private_table)
    features = unmasked(features, labels=False)
    if _declares_type(features):
        private_array = np.asarray(features)
        _check_numeric(private_array.dtype, "features")
        return private_array
    if not isinstance(features, Sequence) or isinstance(features, str | bytes):
        private_cells = np.asarray(features, dtype=object)
        return numbers(private_cells.ravel()).reshape(private_cells.shape)
    return _listed(features)


def _listed(private_rows: Sequence[Any]) -> Floats:
    """A list of rows as a matrix, or one of numbers as a vector; what most of its entries are says which, and d.

    Privacy:
        That is public, as the type of an array is. An entry of another length, or of another kind, is a record that
        cannot be read: all its cells are missing.
    """
    with unheard():
        private_lengths = [_length(private_row) for private_row in private_rows]
    private_counts = Counter(private_lengths)
    width = max(private_counts, key=lambda length: (private_counts[length], length), default=-1)
    private_pairs = zip(private_rows, private_lengths, strict=True)
    if width < 0:
        return numbers(private_row if length < 0 else None for private_row, length in private_pairs)
    private_missing = [None] * width
    return numbers(
        private_cell
        for private_row, length in private_pairs
        for private_cell in (_row(private_row, width) if length == width else private_missing)
    ).reshape(len(private_lengths), width)


def _sequence(private_row: Any) -> Any:
    """What has the length and the cells of a row; None for what is none, such as a number or a text."""
    if isinstance(private_row, list | tuple):
        return private_row
    if isinstance(private_row, str | bytes | bytearray | memoryview | np.generic | decimal.Decimal):
        return None
    if isinstance(private_row, Sequence):
        return private_row
    if isinstance(private_row, np.ma.MaskedArray):
        return private_row if private_row.ndim == 1 else None  # with what is masked in it
    if not hasattr(private_row, "__array__"):
        return None
    private_array = np.asarray(private_row)
    return private_array if private_array.ndim == 1 else None


def _length(private_row: Any) -> int:
    """How many cells a row says that it has, without reading any; -1 for what is none, or fails."""
    try:
        private_cells = _sequence(private_row)
        return -1 if private_cells is None else len(private_cells)
    except Exception:
        return -1


def _row(private_row: Any, width: int) -> list[Any]:
    """The cells of a row, all missing where it fails or holds another number; no more of them are read."""
    try:
        private_cells = list(itertools.islice(_sequence(private_row), width + 1))
    except Exception:
        private_cells = []
    return private_cells if len(private_cells) == width else [None] * width


def targets(private_targets: Any, *, labels: bool) -> NDArray[Any]:
    """Targets as an array: labels as they are given, numbers as numbers.

    Raises:
        TypeError, ValueError: numbers are wanted, and a type is declared that is none of real numbers.
    """
    private_columns = arrow_columns(private_targets)
    if private_columns is not None and len(private_columns) == 1:
        private_targets = private_columns[0]
    private_targets = unmasked(uncategorised(private_targets) if labels else private_targets, labels=labels)
    dtype = getattr(private_targets, "dtype", None)
    if not _declares_type(private_targets):
        private_cells = _objects(private_targets)
    elif isinstance(dtype, pd.api.extensions.ExtensionDtype):
        if not labels and not _is_numeric(dtype):
            _refuse(dtype, "targets")
        private_cells = np.asarray(private_targets, dtype=object)
    else:
        private_cells = np.asarray(private_targets)
    if labels:
        return private_cells
    if private_cells.dtype.kind == "O":
        return numbers(private_cells.ravel()).reshape(private_cells.shape)
    _check_numeric(private_cells.dtype, "targets")
    return private_cells


def label_codes(private_labels: NDArray[Any], classes: Sequence[Any]) -> Codes:
    """Position of each label among the classes, -1 for a label that is none of them.

    A label that equals no class may still write one, see `Writings`: "1" writes 1, and " Yes " writes "yes". Where the
    classes are 0 and 1, so do the words of `TRUE_WORDS` and `FALSE_WORDS`.
    """
    position, writings = {label: code for code, label in enumerate(classes)}, _writings_of(classes)
    if private_labels.dtype.kind == "O":
        with unheard():
            return np.fromiter((_code(position, writings, label) for label in private_labels), np.int64)
    known = np.asarray(classes)
    kinds = known.dtype.kind, private_labels.dtype.kind
    if kinds[0] == kinds[1] or not {"U", "S", "O"} & set(kinds):  # bytes and texts compare by raising
        order = np.argsort(known)
        place = np.minimum(np.searchsorted(known[order], private_labels), len(classes) - 1)
        private_codes = np.where(known[order][place] == private_labels, order[place], -1)
    else:
        private_codes = np.full(len(private_labels), -1)
    private_left = np.flatnonzero(private_codes < 0)
    if len(private_left):
        private_values, private_inverse = np.unique(private_labels[private_left], return_inverse=True)
        private_found = [_code(position, writings, label) for label in private_values.tolist()]
        private_codes[private_left] = np.asarray(private_found, np.int64)[private_inverse]
    return private_codes


class Writings:
    """Which of some public texts a cell writes.

    A text writes one that it equals; else one that it equals when both are trimmed and brought to Unicode's normal form
    C; else one that it equals without regard to capitals; else the one that is a whole number, such as "1", where it
    writes the same number, such as "1.0". A way in which two of the public texts are the same is not taken. A number is
    looked up as "3" or "2.5", a truth value as "True" or "1".

    Args:
        texts: the public ones, all different; None for one that no cell writes.
        codes: the position of each, where several stand for one.
        words: further texts, in small letters, and the positions that they write.

    Privacy:
        What a cell becomes follows from it and from the public texts.
    """

    def __init__(
        self,
        texts: Sequence[str | None],
        codes: Sequence[int] | None = None,
        words: Mapping[str, int] | None = None,
    ) -> None:
        numbered = zip(texts, range(len(texts)) if codes is None else codes, strict=True)
        known = [(text, code) for text, code in numbered if text is not None]
        self._exact = dict(known)
        self._plain = _unambiguous((_trimmed(text), code) for text, code in known)
        self._folded = _unambiguous((_trimmed(text).casefold(), code) for text, code in known)
        self._words = {} if words is None else words
        written = (*self._words.items(), *known)
        self._whole = {int(text): code for text, code in written if is_written_whole(text)}

    def position(self, private_cell: Any) -> int:
        """The position of the text that a cell writes; -1 for none, or for a cell that cannot be read."""
        try:
            found = (self._position(text) for text in written_as(private_cell))
            return next((code for code in found if code >= 0), -1)
        except Exception:  # an integer of more digits than Python writes, an object that fails when read
            return -1

    def _position(self, private_text: str) -> int:
        if private_text in self._exact:
            return self._exact[private_text]
        private_word = _trimmed(private_text)
        private_small = private_word.casefold()
        for known, private_key in (
            (self._plain, private_word),
            (self._folded, private_small),
            (self._words, private_small),
        ):
            if private_key in known:
                return known[private_key]
        if not self._whole:
            return -1
        private_number = number(private_word)
        if not abs(private_number) <= LARGEST_WHOLE or private_number != math.floor(private_number):
            return -1
        return self._whole.get(int(private_number), -1)


TRUE_WORDS, FALSE_WORDS = ("1", "true", "yes", "y", "t"), ("0", "false", "no", "n", "f")
FLAG_WORDS = {**dict.fromkeys(FALSE_WORDS, 0), **dict.fromkeys(TRUE_WORDS, 1)}
LARGEST_WHOLE = 2.0**53  # up to here a float tells whole numbers apart


def flag(private_cell: Any, writings: Writings | None = None) -> float:
    """One cell as 0 or 1; NaN for what is neither.

    Args:
        private_cell: a truth value, a text, or a number. Without `writings` a number from 0 to 1 is 1 from 0.5 on, and
            no other number is a flag.
        writings: of 0 and 1, where a schema names them.
    """
    if isinstance(private_cell, bool | np.bool_):
        return float(private_cell)
    if writings is not None:
        private_code = writings.position(private_cell)
        return float(private_code) if private_code >= 0 else math.nan
    if isinstance(private_cell, str):
        private_word = _trimmed(private_cell).casefold()
        if private_word in FLAG_WORDS:
            return float(FLAG_WORDS[private_word])
    return float(rounded_flags(np.asarray([number(private_cell)]))[0])


def rounded_flags(private_numbers: Floats) -> Floats:
    """Numbers from 0 to 1 as 0 or 1, 1 from 0.5 on; NaN for any other."""
    with np.errstate(invalid="ignore"):
        private_known = (private_numbers >= 0.0) & (private_numbers <= 1.0)
        return np.where(private_known, private_numbers >= 0.5, np.nan)


def written_as(value: Any) -> Iterator[str]:
    """How a public text that equals the value may be written; nothing for a missing value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bool | np.bool_):
        yield from (str(bool(value)), str(bool(value)).lower(), str(int(value)))
    elif isinstance(value, float | np.floating):
        if math.isfinite(value):
            yield str(int(value)) if float(value).is_integer() else str(value)
    elif value is not None and value is not pd.NA and value is not pd.NaT:
        yield str(value)


def is_written_integer(text: str) -> bool:
    """Whether a text is a whole number of at most 20 digits."""
    digits = text.removeprefix("-").removeprefix("+")
    return digits.isascii() and digits.isdecimal() and len(digits) <= 20


def is_written_whole(text: str) -> bool:
    """Whether a text is a whole number as Python writes it, and short enough to be told from others."""
    return text.removeprefix("-").isdecimal() and len(text) <= 18 and str(int(text)) == text


def unmasked(values: Any, *, labels: bool) -> Any:
    """An array of NumPy with a mask as one without: a masked cell is missing. Anything else as it is.

    Args:
        values: what the caller gave.
        labels: whether cells keep their type, so that a missing one becomes None; else it becomes NaN.
    """
    if not isinstance(values, np.ma.MaskedArray):
        return values
    masked: Any = values
    if labels or values.dtype.kind == "O":
        private_cells = np.array(masked.data, dtype=object)
        private_cells[np.ma.getmaskarray(masked)] = None  # `filled(None)` would give them NumPy's own text
        return private_cells
    if values.dtype.kind not in "biuf":
        return values  # to be refused
    wide = values.dtype if values.dtype.kind == "f" else np.float64
    return masked.astype(wide).filled(np.nan)


def uncategorised(values: Any) -> Any:
    """A column of pandas' categories as its cells, None for a missing one; anything else as it is.

    pandas itself gives whole numbers as floats where one cell is missing.
    """
    if not isinstance(getattr(values, "dtype", None), pd.CategoricalDtype):
        return values
    private_column = pd.Categorical(values)
    known = np.empty(len(private_column.categories) + 1, object)
    known[:-1], known[-1] = list(private_column.categories), None
    return known[private_column.codes]


def _declares_type(values: Any) -> bool:
    """Whether an array, a series or the like says of which type its cells are."""
    return hasattr(values, "dtype") or hasattr(values, "__array__")


def _objects(private_cells: Any) -> NDArray[Any]:
    """A list as an array of its cells, whatever they are."""
    return np.fromiter(private_cells, dtype=object)


def _is_numeric(dtype: Any) -> bool:
    return pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_complex_dtype(dtype)


def _frame(private_frame: pd.DataFrame) -> NDArray[Any]:
    """A data frame as an array of numbers, by the types of its columns alone."""
    odd = [str(name) for name, dtype in private_frame.dtypes.items() if not _is_numeric(dtype)]
    if odd:
        raise _no_numbers(odd)
    dtypes = [dtype for dtype in private_frame.dtypes if isinstance(dtype, np.dtype)]
    if len(dtypes) == len(private_frame.columns) > 0:
        return private_frame.to_numpy(np.result_type(*dtypes))
    return private_frame.to_numpy(np.float64, na_value=np.nan)


def _columns(private_table: Any) -> NDArray[Any]:
    """The columns of an Arrow table as an array of numbers, by their types alone.

    Privacy:
        Arrow's own conversion gives another type where a cell is missing, and refusing that would tell of it.
    """
    import pyarrow as pa  # late: for such frames alone

    def holds_numbers(kind: Any) -> bool:
        tests = (
            pa.types.is_floating,
            pa.types.is_integer,
            pa.types.is_decimal,
            pa.types.is_boolean,
            pa.types.is_null,
        )
        return any(test(kind) for test in tests)

    odd = [field.name for field in private_table.schema if not holds_numbers(field.type)]
    if odd:
        raise _no_numbers(odd)
    kinds = [field.type for field in private_table.schema]
    single = bool(kinds) and all(str(kind) in ("float", "halffloat") for kind in kinds)
    private_array = np.empty((private_table.num_rows, len(kinds)), np.float32 if single else np.float64)
    for place, private_column in enumerate(private_table.columns):
        private_column = private_column.cast(pa.float32() if single else pa.float64(), safe=False)
        private_array[:, place] = private_column.to_numpy()
    return private_array


def _no_numbers(names: Iterable[str]) -> ArgumentTypeError:
    """The error for columns that hold no numbers."""
    return ArgumentTypeError(
        f"the columns {', '.join(names)} do not hold numbers: encode them first, by public rules (TabularEncoder)."
    )


def _check_numeric(dtype: Any, name: str) -> None:
    if dtype.kind not in "biuf":
        _refuse(dtype, name)


def _refuse(dtype: Any, name: str) -> None:
    if dtype.kind == "c":  # scikit-learn's words and type of exception
        raise ArgumentError(
            f"Complex data not supported: {name} have dtype {dtype}, give real and imaginary parts as two columns."
        )
    raise ArgumentTypeError(
        f"{name} must be numbers, got dtype {dtype}: encode other columns first, by public rules "
        "(TabularEncoder)."
    )


def _writings_of(classes: Sequence[Any]) -> Writings:
    """How labels may write the classes: texts, numbers and truth values; others are compared as they are."""
    plain = (str, bool, int, float, np.bool_, np.integer, np.floating)
    texts = [next(written_as(one), None) if isinstance(one, plain) else None for one in classes]
    flags = (
        len(classes) == 2 and all(isinstance(one, plain[1:]) for one in classes) and set(classes) == {0, 1}
    )
    turned = {word: list(classes).index(code) for word, code in FLAG_WORDS.items()} if flags else None
    return Writings([text if texts.count(text) == 1 else None for text in texts], words=turned)


def _code(position: Mapping[Any, int], writings: Writings, private_label: Any) -> int:
    try:
        private_code = position.get(private_label, -1) if can_be_looked_up(private_label) else -1
    except Exception:  # it cannot be hashed or compared, so it equals no class
        private_code = -1
    return private_code if private_code >= 0 else writings.position(private_label)


def _trimmed(text: str) -> str:
    return unicodedata.normalize("NFC", text.strip())


def _unambiguous(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    """The position under each key that has one alone and is not empty."""
    found: dict[str, set[int]] = {}
    for key, code in pairs:
        found.setdefault(key, set()).add(code)
    return {key: next(iter(codes)) for key, codes in found.items() if key and len(codes) == 1}


# ---- A sparse matrix as it must be before compiled code may read it: indices in bounds, every entry once ---
# SciPy's and our own compiled code follows `indptr` and `indices` without looking: a column beyond the last one reads
# or writes other memory. SciPy checks some of this when a matrix is made, nothing when its arrays are changed
# afterwards.
_MOST_COLUMNS = 2**31 - 2  # stored column numbers are int32, and a constant column may follow
_COMPRESSED: dict[str, Any] = {"csr": sparse.csr_array, "csc": sparse.csc_array, "bsr": sparse.bsr_array}
_MISMATCHED = "the number of its values is not that of their positions"


def checked_csr(features: Any) -> "sparse.csr_array":
    """The matrix as canonical CSR: columns in ascending order within a row, none of them twice. The caller's stays.

    Args:
        features: a SciPy sparse matrix or array of any format.
    Privacy:
        Which entries are stored is private, like their values. The line is drawn where arrays stop to describe a
        matrix: whether there is a row to which an entry belongs, a column, and a value. Arrays that do not are refused
        here, once, before anything is computed or spent, in a sentence that names the broken rule and no number from
        them. Everything a matrix can hold is taken in silence: entries out of order (they are sorted), stored twice
        (they are added) or stored as zero, values beyond the last stored entry (they are left out), and NaN and
        infinite values (see `Units`). Flags that SciPy keeps on the matrix, such as `has_canonical_format`, are not
        believed: an entry that is stored twice would escape the clip of its row.
    Raises:
        ArgumentError: the arrays do not describe a matrix of this shape.
    """
    if features.ndim != 2:
        raise ArgumentError(
            f"features must have shape (rows, d), got {features.ndim} dimensions: give one row for each record."
        )
    if features.shape[1] < 1 or features.shape[1] > _MOST_COLUMNS:
        raise ArgumentError(
            f"features must have at least one column and at most {_MOST_COLUMNS}, got {features.shape[1]}."
        )
    with np.errstate(all="ignore"):  # a warning must not depend on the data
        return _canonical(_as_csr(features))


def _as_csr(features: Any) -> "sparse.csr_array":
    """CSR whose arrays may be read: what compiled code converts is checked before, the rest afterwards."""
    if features.format in _COMPRESSED:
        return sparse.csr_array(_compressed(features))
    if features.format == "lil" and list(map(len, features.rows)) != list(map(len, features.data)):
        _refuse_sparse(_MISMATCHED)
    try:
        private_pairs = features.tocoo()
    except (ValueError, TypeError, IndexError, OverflowError):  # their texts may hold numbers from the arrays
        private_pairs = None
    if private_pairs is None:
        _refuse_sparse("its entries do not fit its shape")
    _require_indices(private_pairs.row, features.shape[0])
    _require_indices(private_pairs.col, features.shape[1])
    if not len(private_pairs.row) == len(private_pairs.col) == len(private_pairs.data):
        _refuse_sparse(_MISMATCHED)
    return sparse.csr_array(private_pairs)


def _compressed(features: Any) -> Any:
    """CSR, CSC or BSR with the same arrays, checked, and without the flags of the caller's."""
    private_starts, private_indices, private_values = features.indptr, features.indices, features.data
    if not isinstance(private_values, np.ndarray) or private_values.ndim != (
        3 if features.format == "bsr" else 1
    ):
        _refuse_sparse("`data` is not an array with the right number of dimensions")
    lines, width = features.shape
    if features.format == "csc":
        lines, width = width, lines
    if features.format == "bsr":
        height, breadth = private_values.shape[1:]
        if height < 1 or breadth < 1 or lines % height or width % breadth:
            _refuse_sparse("its blocks do not fit its shape")
        lines, width = lines // height, width // breadth
    _require_integers(private_starts)
    if len(private_starts) != lines + 1:
        _refuse_sparse("the length of `indptr` does not fit its shape")
    if int(private_starts[0]) != 0 or np.any(private_starts[1:] < private_starts[:-1]):
        _refuse_sparse("`indptr` does not start at 0, or decreases")
    entries = int(private_starts[-1])
    _require_integers(private_indices)
    if not entries <= len(private_indices) <= len(private_values):
        _refuse_sparse(_MISMATCHED)
    _require_indices(private_indices[:entries], width)
    arrays = (private_values[:entries], private_indices[:entries], private_starts)
    return _COMPRESSED[features.format](arrays, shape=features.shape)


def _require_integers(private_indices: Any) -> None:
    plain = isinstance(private_indices, np.ndarray) and private_indices.ndim == 1
    if not plain or private_indices.dtype.kind not in "iu":
        _refuse_sparse("its indices are not one-dimensional arrays of integers")


def _require_indices(private_indices: Any, width: int) -> None:
    _require_integers(private_indices)
    if len(private_indices) and not 0 <= int(private_indices.min()) <= int(private_indices.max()) < width:
        _refuse_sparse("a row or column index is negative or beyond the shape")


def _refuse_sparse(reason: str) -> NoReturn:
    raise ArgumentError(
        f"features are not a sparse matrix that can be read: {reason}. Build it anew from its entries, for instance by "
        "`scipy.sparse.coo_array((values, (rows, columns)), shape=shape).tocsr()`."
    )


def _canonical(private_matrix: "sparse.csr_array") -> "sparse.csr_array":
    """Sorted columns, each once; the matrix itself where it is so, a copy elsewhere."""
    private_ascends = private_matrix.indices[1:] > private_matrix.indices[:-1]
    private_breaks = private_matrix.indptr[1:-1]
    private_ascends[private_breaks[(private_breaks > 0) & (private_breaks < private_matrix.nnz)] - 1] = True
    if np.all(private_ascends):
        return private_matrix
    private_copy = sparse.csr_array(
        (private_matrix.data.copy(), private_matrix.indices.copy(), private_matrix.indptr.copy()),
        shape=private_matrix.shape,
    )
    private_copy.sum_duplicates()
    return private_copy
