"""A picture for the documentation: a slice of an objective with jumps and kinks, raw and averaged over balls.

    python -m benchmarks.slices

The objective is the mean cost of an inventory policy over five made-up products: it jumps wherever one more order is
placed. The average over balls of its parameters, which is what estimates from values descend on, has no jumps.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from privopt.zoo import inventory

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "figures" / "raw-and-smoothed.svg"
PRODUCTS, POINTS, DRAWS = 5, 321, 2000
RADII = (0.5, 1.5)
HALF = 4.0
CENTRE = np.array([2.3, 5.1, 4.2, 1.6, 3.3, 4.7, 3.9, 2.2])


def slice_of(radius: float = 0.0, *, points: int = POINTS, draws: int = DRAWS) -> NDArray[np.float64]:
    """The mean cost along a line through CENTRE, averaged over balls of a radius.

    Args:
        radius: of the balls; 0 for the objective itself.
        points: how many places of the line.
        draws: how many points of each ball.
    """
    problem = inventory()
    demands = problem.demands(PRODUCTS, seed=5)
    rng = np.random.default_rng(0)
    direction = rng.normal(size=problem.dimension)
    direction /= np.linalg.norm(direction)
    shift = rng.normal(size=(draws, problem.dimension))
    lengths = radius * rng.uniform(size=(draws, 1)) ** (1.0 / problem.dimension)
    shift *= lengths / np.linalg.norm(shift, axis=1)[:, None]
    around = shift if radius > 0 else np.zeros((1, problem.dimension))
    return np.array(
        [
            np.mean(problem((CENTRE + step * direction + around)[:, None, :], demands[None]))
            for step in np.linspace(-HALF, HALF, points)
        ]
    )


def draw(place: Path = PICTURE, *, points: int = POINTS, draws: int = DRAWS) -> None:
    """The slice and its averages, as an SVG."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    steps = np.linspace(-HALF, HALF, points)
    with rc_context({"svg.hashsalt": "privopt", "svg.fonttype": "none"}):
        figure = Figure(figsize=(7.0, 3.6), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        raw = slice_of(points=points)
        axes.plot(steps, raw, color="0.55", linewidth=1.0, drawstyle="steps-mid", label="raw")
        for radius, colour in zip(RADII, ("tab:orange", "tab:blue"), strict=True):
            averaged = slice_of(radius, points=points, draws=draws)
            label = f"averaged over balls of radius {radius:g}"
            axes.plot(steps, averaged, color=colour, linewidth=1.6, label=label)
        axes.set_xlabel("distance along a line through the parameters")
        axes.set_ylabel("mean cost of a period")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, loc="upper center")
        place.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(place, metadata={"Date": None})


if __name__ == "__main__":
    draw()
