"""A picture of released or public numbers, as a program describes it: a report draws it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from privopt.json_values import json_value

MOST_POINTS = 400  # of one series; a longer one is thinned


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line, or one set of bars.

    Attributes:
        name: what it shows.
        ys: its heights.
        xs: where they stand; of bars, nothing: they stand at the picture's categories.
        errors: half the length of an error bar at each of them; nothing for none.
    """

    name: str
    ys: tuple[float, ...]
    xs: tuple[float, ...] = ()
    errors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for other in (self.xs, self.errors):
            if other and len(other) != len(self.ys):
                raise ValueError(f"a series of {len(self.ys)} heights has {len(other)} places or errors.")


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Lines over a number, or bars over categories.

    Attributes:
        title: what it shows.
        caption: one sentence below it.
        x, y: labels of the axes.
        series: at most four.
        categories: names below the bars; nothing for lines.
    """

    title: str
    caption: str
    x: str
    y: str
    series: tuple[Series, ...]
    categories: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.series) <= 4:
            raise ValueError(f"a picture has one to four series, got {len(self.series)}.")

    @property
    def kind(self) -> Literal["lines", "bars"]:
        """How it is drawn."""
        return "bars" if self.categories else "lines"

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values."""
        return json_value(
            {
                "title": self.title,
                "caption": self.caption,
                "x": self.x,
                "y": self.y,
                "categories": list(self.categories),
                "series": [
                    {
                        "name": one.name,
                        "xs": list(one.xs),
                        "ys": list(one.ys),
                        "errors": list(one.errors),
                    }
                    for one in self.series
                ],
            }
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Picture":
        """Rebuild it from what `to_dict` gave."""
        return cls(
            **{name: values[name] for name in ("title", "caption", "x", "y")},
            categories=tuple(values["categories"]),
            series=tuple(
                Series(
                    name=one["name"],
                    **{name: tuple(float(value) for value in one[name]) for name in ("xs", "ys", "errors")},
                )
                for one in values["series"]
            ),
        )


def line(name: str, ys: Sequence[Any], xs: Sequence[Any] | None = None) -> Series:
    """A line of numbers, thinned where it is long."""
    places = range(len(ys)) if xs is None else xs
    step = max(1, -(-len(ys) // MOST_POINTS))
    kept = list(range(0, len(ys), step))
    if kept and kept[-1] != len(ys) - 1:
        kept.append(len(ys) - 1)
    return Series(
        name=name, ys=tuple(float(ys[at]) for at in kept), xs=tuple(float(places[at]) for at in kept)
    )


def bars(name: str, ys: Sequence[Any], errors: Sequence[Any] = ()) -> Series:
    """A set of bars."""
    return Series(name=name, ys=tuple(map(float, ys)), errors=tuple(map(float, errors)))
