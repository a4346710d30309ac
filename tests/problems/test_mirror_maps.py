import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from privopt.problems.constraints import (
    Box,
    Constraint,
    L1Ball,
    L2Ball,
    LpBall,
    Product,
    Simplex,
    Unconstrained,
)

SIZE = 3
LOW, HIGH = np.asarray([-1.0, 0.5, -0.2]), np.asarray([2.0, 0.9, 0.2])


def entropy(masses: np.ndarray) -> float:
    return float(np.sum(masses * np.log(np.maximum(masses, 1e-300))))


@dataclass(frozen=True)
class Body:
    """A body by the variables u of its distance function w: parameters, w, the norm of B, and what u must satisfy."""

    constraint: Constraint
    variables: int
    params: Callable[[np.ndarray], np.ndarray]
    distance: Callable[[np.ndarray], float]
    norm: Callable[[np.ndarray], float]
    limits: tuple[tuple[float, float], ...]
    equality: Callable[[np.ndarray], float] | None = None
    inequality: Callable[[np.ndarray], float] | None = None

    def start(self) -> np.ndarray:
        """The minimiser of w, known in closed form."""
        if self.equality is not None:
            return np.full(self.variables, 1.0 / self.variables)
        return 0.5 * (LOW + HIGH) if isinstance(self.constraint, Box) else np.zeros(self.variables)

    def slope(self, u: np.ndarray) -> np.ndarray:
        if self.equality is not None:
            return np.log(u) + 1.0
        steps = 1e-6 * np.eye(self.variables)
        return np.asarray([(self.distance(u + h) - self.distance(u - h)) / 2e-6 for h in steps])

    def divergence(self, u: np.ndarray, v: np.ndarray) -> float:
        return self.distance(u) - self.distance(v) - float(self.slope(v) @ (u - v))

    def mirror_step(self, at: np.ndarray, gradient: np.ndarray, step_size: float) -> np.ndarray:
        """Brute force: minimise divergence plus linear function."""

        def cost(u: np.ndarray) -> float:
            return self.divergence(u, at) + step_size * float(gradient @ self.params(u))

        conditions = []
        if self.equality is not None:
            conditions.append({"type": "eq", "fun": self.equality})
        if self.inequality is not None:
            conditions.append({"type": "ineq", "fun": self.inequality})
        begin = 0.7 * at + 0.3 * self.start()
        found = optimize.minimize(
            cost,
            begin,
            method="SLSQP",
            bounds=self.limits,
            constraints=conditions,
            options={"ftol": 1e-15, "maxiter": 500},
        )
        return found.x


def free(count: int) -> tuple[tuple[float, float], ...]:
    return ((-10.0, 10.0),) * count


def masses(count: int) -> tuple[tuple[float, float], ...]:
    return ((1e-12, 1.0),) * count


def lp_body(radius: float, p: float) -> Body:
    def size(u: np.ndarray) -> float:
        return float(np.sum(np.abs(u) ** p) ** (1 / p))

    return Body(
        LpBall(radius, p),
        SIZE,
        lambda u: u,
        lambda u: size(u) ** 2 / (2 * (p - 1) * radius**2),
        lambda z: size(z) / radius,
        free(SIZE),
        inequality=lambda u: radius**2 - size(u) ** 2,
    )


BODIES = [
    Body(
        L2Ball(1.5),
        SIZE,
        lambda u: u,
        lambda u: float(u @ u) / (2 * 1.5**2),
        lambda z: float(np.linalg.norm(z)) / 1.5,
        free(SIZE),
        inequality=lambda u: 1.5**2 - float(u @ u),
    ),
    Body(
        L1Ball(2.0),
        2 * SIZE,
        lambda u: 2.0 * (u[:SIZE] - u[SIZE:]),
        entropy,
        lambda z: float(np.sum(np.abs(z))) / 2.0,
        masses(2 * SIZE),
        equality=lambda u: float(np.sum(u)) - 1.0,
    ),
    Body(
        Simplex(0.7),
        SIZE,
        lambda u: 0.7 * u,
        entropy,
        lambda z: float(np.sum(np.abs(z))) / 0.7,
        masses(SIZE),
        equality=lambda u: float(np.sum(u)) - 1.0,
    ),
    Body(
        Box(tuple(LOW), tuple(HIGH)),
        SIZE,
        lambda u: u,
        lambda u: 0.5 * float(np.sum(((2 * u - LOW - HIGH) / (HIGH - LOW)) ** 2)),
        lambda z: float(np.max(2 * np.abs(z) / (HIGH - LOW))),
        tuple(zip(LOW, HIGH, strict=True)),
    ),
    lp_body(1.2, 1.5),
    lp_body(0.4, 2.0),
]
each_body = pytest.mark.parametrize("body", BODIES, ids=lambda body: str(body.constraint))
FACE = np.asarray([5.0, -3.0, 0.5])  # a step large enough to reach the boundary


@each_body
def test_mirror_steps_minimise_divergence_plus_linear_function(body: Body) -> None:
    mirror = body.constraint.mirror((SIZE,))
    assert mirror is not None
    state, at = mirror.start(), body.start()
    np.testing.assert_allclose(mirror.point(state), body.params(at), atol=1e-12)
    for gradient, step_size in (([0.4, -0.3, 0.1], 0.5), ([-0.2, 0.1, 0.6], 0.8), (FACE, 0.6), (-FACE, 0.3)):
        state = mirror.step(state, jnp.asarray(gradient), step_size)
        at = body.mirror_step(at, np.asarray(gradient), step_size)
        np.testing.assert_allclose(mirror.point(state), body.params(at), atol=2e-5)
        assert bool(body.constraint.contains(mirror.point(state)))


@pytest.mark.later("L2Ball(radius=1.5)", "LpBall(radius=1.2, p=1.5)", "LpBall(radius=0.4, p=2.0)")
@each_body
def test_the_distance_function_is_strongly_convex_and_its_divergence_is_bounded(body: Body) -> None:
    mirror = body.constraint.mirror((SIZE,))
    assert mirror is not None
    rng = np.random.default_rng(4)
    if body.equality is None:
        raw = rng.normal(size=(80, SIZE)) * 3.0
        points = np.asarray(jax.vmap(body.constraint.project)(raw))
    else:
        points = rng.dirichlet(np.full(body.variables, 0.2), size=80) * (1 - 1e-6) + 1e-6 / body.variables
    for u, v in zip(points[:40], points[40:], strict=True):
        assert body.divergence(u, body.start()) <= mirror.divergence_bound + 1e-9
        assert body.divergence(u, v) >= 0.5 * body.norm(body.params(u) - body.params(v)) ** 2 - 1e-6
    if body.equality is not None:
        vertex = np.eye(body.variables)[0]
        assert body.divergence(vertex, body.start()) == pytest.approx(mirror.divergence_bound)


def test_a_product_steps_in_each_part() -> None:
    parts = ((L1Ball(2.0), 2), (Box(-1.0, 1.0), 1), (Simplex(), 3))
    mirror = Product(parts).mirror((3, 2))
    assert mirror is not None
    gradient = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2)))
    step = jax.jit(lambda state, gradient: mirror.step(state, gradient, 0.4))
    state = step(step(mirror.start(), gradient), gradient)
    blocks, bound, begin = [], 0.0, 0
    for part, size in parts:
        own = part.mirror((size,))
        assert own is not None
        piece = gradient.ravel()[begin : begin + size]
        blocks.append(own.point(own.step(own.step(own.start(), piece, 0.4), piece, 0.4)))
        bound, begin = bound + own.divergence_bound, begin + size
    np.testing.assert_allclose(mirror.point(state).ravel(), jnp.concatenate(blocks), rtol=1e-13)
    assert mirror.divergence_bound == pytest.approx(bound)
    assert Product(((L1Ball(1.0), 2), (Unconstrained(), 1))).mirror((3,)) is None
    assert Box(0.0, math.inf).mirror((3,)) is None


def test_entropic_states_survive_huge_steps() -> None:
    for constraint, expected in ((L1Ball(2.0), [0.0, -2.0, 0.0]), (Simplex(2.0), [2.0, 0.0, 0.0])):
        mirror = constraint.mirror((SIZE,))
        assert mirror is not None
        state = mirror.step(mirror.start(), jnp.asarray([-1.0, 4.0, 0.0]), 1e12)
        np.testing.assert_allclose(mirror.point(state), expected, atol=1e-15)
        back = mirror.step(state, jnp.asarray([1.0, -4.0, 0.0]), 1e12)
        np.testing.assert_allclose(mirror.point(back), mirror.point(mirror.start()), atol=1e-15)


@pytest.mark.parametrize(
    ("constraint", "mean", "mean_square"),
    [
        (L2Ball(2.0), 14.0716061163, 200.0),
        (L1Ball(2.0), 5.0191948699, 25.9237144557),
        (Box(-2.0, 2.0), 79.7884560803, 6438.8737692023),
        (LpBall(2.0, 1.5), 8.6101360956, 74.1344435852),
    ],
    ids=str,
)
def test_support_moments_are_the_specification_s(
    constraint: Constraint, mean: float, mean_square: float
) -> None:
    mirror = constraint.mirror((50,))
    assert mirror is not None
    assert mirror.support_moments == pytest.approx((mean, mean_square), rel=1e-10)


def test_the_simplex_s_support_moments_are_those_of_the_largest_of_normals() -> None:
    two = Simplex(3.0).mirror((2,))
    assert two is not None
    assert two.support_moments == pytest.approx((3.0 / math.sqrt(math.pi), 9.0), rel=1e-9)
    three = Simplex().mirror((3,))
    assert three is not None
    assert three.support_moments == pytest.approx(
        (1.5 / math.sqrt(math.pi), 1.0 + math.sqrt(3.0) / (2.0 * math.pi)), rel=1e-9
    )


def test_a_product_s_support_moments_are_those_of_a_sum() -> None:
    whole = Product(((Box(-1.0, 1.0), 2), (Box(-3.0, 3.0), 4))).mirror((6,))
    same = Box((-1.0,) * 2 + (-3.0,) * 4, (1.0,) * 2 + (3.0,) * 4).mirror((6,))
    assert whole is not None
    assert same is not None
    assert whole.support_moments == pytest.approx(same.support_moments, rel=1e-12)


def test_accelerated_mirror_descent_reaches_the_specification_s_points() -> None:
    """The coupling form of ERM reference 3.5 on its reference data, RV6a, c, d, f."""
    rows = np.sin(0.5 + 1.3 * np.arange(8)[:, None] + 0.7 * np.arange(3)[None])
    rows = jnp.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0))
    signs = jnp.asarray(np.where(np.cos(2.0 * np.arange(8)) > 0, 1.0, -1.0))

    def run(constraint: Constraint, lt: float, sigma: float = 0.1) -> np.ndarray:
        mirror = constraint.mirror((3,))
        assert mirror is not None
        state = mirror.start()
        y = mirror.point(state)
        for k in range(4):
            r = 2.0 / (k + 2)
            x = r * mirror.point(state) + (1 - r) * y
            gradient = rows.T @ (-signs * jax.nn.sigmoid(-signs * (rows @ x))) / 8.0
            noise = sigma * jnp.cos(1.0 + k + 0.7 * jnp.arange(3.0))
            state = mirror.step(state, gradient + noise, (k + 2) / (2 * lt))
            y = (1 - r) * y + r * mirror.point(state)
        return np.asarray(y)

    expected = {
        (L2Ball(2.0), 2.0): (0.2110142742, -0.0658589956, -0.3117577507),
        (L2Ball(0.3), 0.05): (0.1006298855, -0.0040257688, -0.1067880412),
        (LpBall(2.0, 1.5), 2.0): (0.0627361034, -0.0087543863, -0.1375003164),
        (L1Ball(2.0), 2.0): (0.0653610214, -0.0212492781, -0.0996111307),
    }
    for (constraint, lt), point in expected.items():
        np.testing.assert_allclose(run(constraint, lt), point, atol=2e-10)
