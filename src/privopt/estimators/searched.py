"""How a model was chosen, in words: by a charged search, or by one that compares raw scores, where it is recognised.

Likewise what a pipeline learned from the records before the model was fitted.
"""

import inspect
from collections.abc import Callable
from types import FrameType
from typing import Any

from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

from privopt.estimators.search import SearchPlan
from privopt.estimators.setup import Setup
from privopt.report.report import Selection
from privopt.tables.encoder import TabularEncoder

# What is recognised, and the module of scikit-learn that defines it. `docs/sharp-edges.md` lists it for users.
SEARCHES = {
    "GridSearchCV": "sklearn.model_selection._search",
    "RandomizedSearchCV": "sklearn.model_selection._search",
    "HalvingGridSearchCV": "sklearn.model_selection._search_successive_halving",
    "HalvingRandomSearchCV": "sklearn.model_selection._search_successive_halving",
    "RFECV": "sklearn.feature_selection._rfe",
    "SequentialFeatureSelector": "sklearn.feature_selection._sequential",
    "TunedThresholdClassifierCV": "sklearn.model_selection._classification_threshold",
    "cross_val_score": "sklearn.model_selection._validation",
    "cross_validate": "sklearn.model_selection._validation",
    "cross_val_predict": "sklearn.model_selection._validation",
    "learning_curve": "sklearn.model_selection._validation",
    "validation_curve": "sklearn.model_selection._validation",
    "permutation_test_score": "sklearn.model_selection._validation",
}

# Functions that do the fits of a search, also where it spreads them over threads or processes.
_WORKERS = {
    "_fit_and_score": "cross_validate",
    "_fit_and_predict": "cross_val_predict",
    "_incremental_fit_estimator": "learning_curve",
    "_permutation_test_score": "permutation_test_score",
    "_rfe_single_fit": "RFECV",
    "_fit_and_score_over_thresholds": "TunedThresholdClassifierCV",
}

SEARCHED = Selection(
    sentence="Selection not private: chosen on raw validation scores. The model was fitted inside a search or a "
    "cross-validation of scikit-learn, or behind one in a pipeline, and no budget paid for the scores; PrivateSearchCV "
    "pays for the choice.",
    private=False,
)


PREPROCESSED = (
    "Preprocessing not private: in the pipeline, before the model, {steps} learned from the same records, and no "
    "budget paid for it. The guarantee covers the model for given features alone. Scale by public bounds "
    "(bounds=...), encode by public categories (TabularEncoder), or fit the transformer on public data and put it "
    "into a FrozenEstimator."
)


def marked(selection: Selection | None) -> Selection | None:
    """How a model was chosen, with what the callers of its fit did that no budget paid for.

    Args:
        selection: what is known of the choice without that; None where nothing was chosen.
    """
    unpaid: list[Selection] = [SEARCHED] if in_search() else []
    steps = fitted_before()
    if steps:
        unpaid.append(Selection(sentence=PREPROCESSED.format(steps=", ".join(steps)), private=False))
    found = [*unpaid, *([selection] if selection is not None else [])]
    if not unpaid:
        return selection
    return Selection(sentence=" ".join(one.sentence for one in found), private=False)


def fitted_before() -> list[str]:
    """The transformers that the pipelines around a fit, if there are any, fitted on the records before."""
    found: list[str] = []
    frame = inspect.currentframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Pipeline) and frame.f_code.co_name.startswith("fit"):
            found += learned_steps(owner.steps[:-1])
        around: Any = frame.f_locals.get("self")
        if type(around).__name__ == "TransformedTargetRegressor" and around.transformer is not None:
            found += learned_steps([("transformer of the target", around.transformer)])
        frame = frame.f_back
    return list(dict.fromkeys(found))


def in_search() -> bool:
    """Whether a fit was called by one of `SEARCHES`, or by a pipeline in which one of them goes before the model.

    A loop of the caller's own over scores, and a choice made after the fit, look like any other caller: nothing is
    recognised there, and the report says so.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if _searches(frame):
            return True
        frame = frame.f_back
    return False


def _searches(frame: FrameType) -> bool:
    function, owner = frame.f_code.co_name, frame.f_locals.get("self")
    if SEARCHES.get(_WORKERS.get(function, function)) == frame.f_globals.get("__name__", ""):
        return True
    return any(_is_search(one) for one in (owner, *_steps_before_the_last(owner)))


def _steps_before_the_last(owner: Any) -> list[Any]:
    """Those of a pipeline; of anything else none."""
    return [step for _, step in owner.steps[:-1]] if isinstance(owner, Pipeline) else []


def _is_search(one: Any) -> bool:
    return any(SEARCHES.get(kind.__name__) == kind.__module__ for kind in type(one).__mro__)


def describe_choice(search: SearchPlan) -> Selection:
    """How a candidate was chosen, for the report."""
    again = "fitted again on all units" if search.refits else "kept as it was fitted"
    return _selection(
        search,
        f"One of {len(search.fits)} candidates was chosen by the exponential mechanism on held-out units and {again}.",
    )


def describe_strength(search: SearchPlan, chosen: Setup) -> Selection:
    """How the strength of a penalty was chosen, for the report."""
    assert chosen.alpha is not None
    share = float(search.plan.settings["selection_share"])
    settings = search.plan.settings
    share *= 1.0 - float(settings.get("scale_share", 0.0)) - float(settings.get("count_share", 0.0))
    return _selection(
        search,
        f"The strength of the penalty, alpha = {chosen.alpha:.3g}, was chosen privately among {len(search.fits)} "
        f"public ones for {100 * share:.3g} % of the budget (of its rho): each was fitted on a part of the units, the "
        "exponential mechanism chose one on the others, and the model was fitted again on all units.",
    )


def _selection(search: SearchPlan, sentence: str) -> Selection:
    sentence = f"{sentence} The price above is that of all the fits and of the choice."
    return Selection(sentence=sentence, private=search.plan.budget.is_private)


# ---- The transformers that a pipeline fitted on the records before the model, without noise or a budget ----
# They are known by their names, as the searches above are: to import them takes longer than a fit.

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
