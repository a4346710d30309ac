"""How a model was chosen, in words: by a charged search, or by one that compares raw scores, where it is recognised.

Likewise what a pipeline learned from the records before the model was fitted.
"""

import inspect
from types import FrameType
from typing import Any

from sklearn.pipeline import Pipeline

from privopt.estimators.preprocessing import learned_steps
from privopt.estimators.search import SearchPlan
from privopt.estimators.setup import Setup
from privopt.report.report import Selection

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
