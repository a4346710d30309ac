"""The released values of a run, kept so that somebody else can replay it; and what must be known to do so.

Kept is what was released and paid for, and public random numbers: never what a stream hides, and nothing that a
mechanism was not asked for. The numbers stand in a file of their own, an index of them in the report.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from privopt.json_values import json_value

if TYPE_CHECKING:
    from privopt.curator.transcript import Release, Transcript

MOST_KEPT_BYTES = 16 * 2**20  # of a run; of longer ones nothing is kept
RELEASES_FILE = "releases.safetensors"
INDEX = "index"  # in the metadata of that file
NO_RECIPE = "what its solver was given is written down by `minimize` and by fits of linear models alone"


@dataclass(frozen=True)
class Recipe:
    """What has to be known, besides the releases, to run a solver again; or why that cannot be written down.

    Attributes:
        kind: who ran it, such as "minimize"; empty where there is an obstacle.
        values: its arguments, as JSON values.
        obstacle: why nothing can be replayed, as a sentence without a full stop; empty where it can.
    """

    kind: str = ""
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    obstacle: str = ""


@dataclass(frozen=True, eq=False)
class KeptReleases:
    """The releases of a run and its recipe.

    Attributes:
        index: what the report says of them, as JSON values.
        arrays: the released values by the names in the index; None where only the index is at hand.
    """

    index: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]] | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeptReleases) and self.index == other.index

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def of(cls, transcript: "Transcript", recipe: Recipe | None) -> Self:
        """Keep the releases of a transcript, or say why nothing is kept."""
        obstacle = NO_RECIPE if recipe is None else recipe.obstacle
        lines = list(transcript)
        if not obstacle and any(line.released is None for line in lines):
            obstacle = "not every released value was kept"
        size = sum(0 if line.released is None else line.released.nbytes for line in lines)
        if not obstacle and size > MOST_KEPT_BYTES:
            obstacle = (
                f"its releases take {size / 2**20:,.0f} MiB, and at most {MOST_KEPT_BYTES >> 20} are kept"
            )
        if obstacle or recipe is None:
            return cls({"obstacle": obstacle})
        arrays, index = dict[str, NDArray[Any]](), list[dict[str, Any]]()
        for (name, _, _), alike in groupby(lines, key=_likeness):
            values = np.stack([np.asarray(line.released) for line in alike])
            arrays[str(len(index))] = values
            index.append({"name": name, "array": str(len(index))})
        known = {
            "obstacle": None,
            "recipe": {"kind": recipe.kind, **recipe.values},
            "eager": transcript.eager,
            "exact": transcript.exact_noise,
            "releases": index,
        }
        return cls(
            {**known, "sha256": hashlib.sha256(packed_arrays(arrays, known)).hexdigest()},
            arrays,
        )

    @cached_property
    def packed(self) -> bytes | None:
        """The values as a safetensors file; None where there are none."""
        return None if self.arrays is None else packed_arrays(self.arrays, self.index)


def packed_arrays(arrays: Mapping[str, NDArray[Any]], index: Mapping[str, Any]) -> bytes:
    """Arrays as the content of a safetensors file, which names the index; the same arrays give the same bytes.

    Args:
        arrays: the released values.
        index: what the report says of them. Some arguments of a recipe have no effect on its run: that they are those
            of these values is seen from the digest alone.
    """
    import safetensors.numpy

    plain = {name: np.array(values, order="C") for name, values in arrays.items()}
    return safetensors.numpy.save(plain, {INDEX: digest_of_index(index)})


def digest_of_index(index: Mapping[str, Any]) -> str:
    """SHA-256 of what a report says of the kept values, but for that of their file."""
    known = {name: value for name, value in index.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(json_value(known), sort_keys=True).encode()).hexdigest()


def _likeness(line: "Release") -> tuple[str, tuple[int, ...], str]:
    values = np.asarray(line.released)
    return line.name, values.shape, values.dtype.str
