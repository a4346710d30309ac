"""The transformers that a pipeline fitted on the records before the model, without noise and without a budget.

They are known by their names, as the searches of `searched` are: to import them takes longer than a fit.
"""

from collections.abc import Callable
from typing import Any

from sklearn.utils import get_tags

from privopt.tables.encoder import TabularEncoder

# Of scikit-learn: the steps inside of one that holds several.
_INNER: dict[str, Callable[[Any], list[tuple[str, Any]]]] = {
    "Pipeline": lambda step: list(step.steps),
    "FeatureUnion": lambda step: list(step.transformer_list),
    "ColumnTransformer": lambda step: [
        *((name, inner) for name, inner, _ in step.transformers),
        ("remainder", step.remainder),
    ],
}
# Of scikit-learn: when a rule is known from the arguments and the number of columns alone.
_PUBLIC: dict[str, Callable[[Any], bool]] = {
    "FrozenEstimator": lambda step: True,
    "GaussianRandomProjection": lambda step: not isinstance(step.n_components, str),
    "MissingIndicator": lambda step: step.features == "all",
    "OneHotEncoder": lambda step: _has_listed_categories(step),
    "OrdinalEncoder": lambda step: _has_listed_categories(step),
    "PolynomialFeatures": lambda step: True,
    "SimpleImputer": lambda step: (
        step.strategy == "constant" and step.keep_empty_features and not step.add_indicator
    ),
    "SparseRandomProjection": lambda step: not isinstance(step.n_components, str),
}


def learned_steps(steps: Any) -> list[str]:
    """The transformers among the steps of a pipeline that learn from the records, with their names.

    One that is not known to look at no value counts as one that learns.

    Args:
        steps: pairs of a name and a transformer.
    """
    found: list[str] = []
    for name, step in steps:
        inner = _known(type(step).__mro__, _INNER)
        if inner is not None:
            found += learned_steps(inner(step))
        elif not _is_public(step):
            found.append(f"{name} ({type(step).__name__})")
    return found


def _is_public(step: Any) -> bool:
    """Whether a transformer's rule is known without the records: its arguments say it, or it has none."""
    if step is None or isinstance(step, str | TabularEncoder):
        return True  # "passthrough", "drop", or what goes by a schema
    known = _known((type(step),), _PUBLIC)  # a class that is derived from it may learn
    if known is not None:
        return known(step)
    try:
        return not get_tags(step).requires_fit
    except Exception:  # a transformer of the user's own, which says nothing of itself
        return False


def _known(classes: tuple[type, ...], kinds: dict[str, Callable[[Any], Any]]) -> Callable[[Any], Any] | None:
    """What a table says of the first of some classes that is scikit-learn's and in it."""
    for kind in classes:
        if kind.__module__.startswith("sklearn.") and kind.__name__ in kinds:
            return kinds[kind.__name__]
    return None


def _has_listed_categories(step: Any) -> bool:
    """Whether an encoder's categories are listed, and none is dropped for being rare."""
    return not isinstance(step.categories, str) and step.min_frequency is None and step.max_categories is None
