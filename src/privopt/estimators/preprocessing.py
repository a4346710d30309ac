"""The transformers that a pipeline fitted on the records before the model, without noise and without a budget."""

from typing import Any

from sklearn.compose import ColumnTransformer
from sklearn.frozen import FrozenEstimator
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, PolynomialFeatures
from sklearn.random_projection import GaussianRandomProjection, SparseRandomProjection
from sklearn.utils import get_tags

from privopt.tables.encoder import TabularEncoder


def learned_steps(steps: Any) -> list[str]:
    """The transformers among the steps of a pipeline that learn from the records, with their names.

    One that is not known to look at no value counts as one that learns.

    Args:
        steps: pairs of a name and a transformer.
    """
    found: list[str] = []
    for name, step in steps:
        inner = _inner_steps(step)
        if inner is not None:
            found += learned_steps(inner)
        elif not _is_public(step):
            found.append(f"{name} ({type(step).__name__})")
    return found


def _inner_steps(step: Any) -> list[tuple[str, Any]] | None:
    """The transformers inside of another; None where it is a single one."""
    if isinstance(step, Pipeline):
        return list(step.steps)
    if isinstance(step, FeatureUnion):
        return list(step.transformer_list)
    if isinstance(step, ColumnTransformer):
        return [*((name, inner) for name, inner, _ in step.transformers), ("remainder", step.remainder)]
    return None


def _is_public(step: Any) -> bool:
    """Whether a transformer's rule is known without the records: its arguments say it, or it has none."""
    if step is None or isinstance(step, str | TabularEncoder | PolynomialFeatures | FrozenEstimator):
        return True  # "passthrough", "drop", or what looks at the number and the names of columns alone
    if isinstance(step, OneHotEncoder | OrdinalEncoder):
        is_listed = not isinstance(step.categories, str)
        return is_listed and step.min_frequency is None and step.max_categories is None
    if isinstance(step, SimpleImputer):
        return step.strategy == "constant" and step.keep_empty_features and not step.add_indicator
    if isinstance(step, MissingIndicator):
        return step.features == "all"
    if isinstance(step, GaussianRandomProjection | SparseRandomProjection):
        return not isinstance(step.n_components, str)
    try:
        return not get_tags(step).requires_fit
    except Exception:  # a transformer of the user's own, which says nothing of itself
        return False
