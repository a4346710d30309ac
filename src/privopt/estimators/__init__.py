"""scikit-learn estimators: arguments in, solver called, attributes out. They hide no privacy choice."""
