"""TF-IDF with a linear model: the baseline that reads the words of a text, but not their order.

Texts are vectorized by scikit-learn's default `TfidfVectorizer`. Classes are predicted by `LogisticRegressionCV`,
several classes per row one against the rest, and ratings by `RidgeCV`. The features of a text pair are the vectors of
both texts and their elementwise product, which shows common words.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset
from scipy import sparse

from headwise.tasks.metrics.labels import column_array
from headwise.tasks.splitting import shuffled_indices

NAMES = {
    "classification": "TF-IDF + logistic regression",
    "multi-label": "TF-IDF + logistic regression",
    "regression": "TF-IDF + ridge regression",
}

#: A model is fit on a random subset of the training rows above this number of characters, divided by the number of
#: classes if there are more than two, and by two for pairs. At this size, fitting takes up to a minute on one core.
MAX_CHARACTERS = 16_000_000
NUM_FOLDS = 5
#: Inverse strengths of the regularization that cross-validation chooses from.
CS = (0.1, 1.0, 10.0, 100.0)
ALPHAS = (0.1, 0.3, 1.0, 3.0, 10.0)
BATCH_ROWS = 10_000


@dataclass(frozen=True)
class TfidfModel:
    """A linear model of TF-IDF vectors.

    Args:
        vectorizer: A fitted `TfidfVectorizer`.
        predict: A function of features that returns scores as the metrics of the label type expect them.
        num_rows: The number of training rows that it was fit on.
    """

    vectorizer: Any
    predict: Any
    num_rows: int

    def scores(self, rows: Dataset) -> Any:
        """Return the scores of rows."""
        return np.concatenate([self.predict(build_features(self.vectorizer, texts)) for texts in iterate_texts(rows)])


def fit_tfidf(train: Dataset, label_type: str, num_labels: int) -> TfidfModel | None:
    """Fit a linear model of TF-IDF vectors on training rows.

    Args:
        train: Rows with `text`, `label` and optionally `pair`.
        label_type: "classification", "multi-label" or "regression".
        num_labels: The number of classes; 0 for regression.

    Returns:
        The model; None if no text has a word of two letters.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    train = select_rows(train, max_characters(num_labels, is_pair="pair" in train.column_names))
    texts = [text for batch in iterate_texts(train) for column in batch for text in column]
    try:
        vectorizer = TfidfVectorizer().fit(texts)
    except ValueError:  # an empty vocabulary
        return None
    features = sparse.vstack([build_features(vectorizer, batch) for batch in iterate_texts(train)]).tocsr()
    labels = column_array(train, "label")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # iteration limits, rare classes and changes of scikit-learn's defaults
        predict = FIT[label_type](features, labels, num_labels)
    return TfidfModel(vectorizer, predict, len(train))


def max_characters(num_labels: int, *, is_pair: bool) -> int:
    """Return the number of characters above which a model is fit on a subset of the rows.

    >>> max_characters(2, is_pair=False), max_characters(4, is_pair=True)
    (16000000, 2000000)
    """
    return MAX_CHARACTERS // (num_labels if num_labels > 2 else 1) // (2 if is_pair else 1)


def select_rows(train: Dataset, limit: int) -> Dataset:
    """Return a random subset of rows with at most this number of characters."""
    lengths = np.concatenate([np.sum([[len(t) for t in column] for column in b], axis=0) for b in iterate_texts(train)])
    if lengths.sum() <= limit:
        return train
    order = shuffled_indices(len(train), 0)
    num_rows = int(np.searchsorted(np.cumsum(lengths[order]), limit))
    return train.select(np.sort(order[: max(num_rows, NUM_FOLDS)]))


def iterate_texts(rows: Dataset) -> Iterator[list[Sequence[str]]]:
    """Iterate over batches of texts: one column, or two for pairs."""
    names = [name for name in ("text", "pair") if name in rows.column_names]
    for batch in rows.select_columns(names).with_format(None).iter(BATCH_ROWS):
        yield [batch[name] for name in names]


def build_features(vectorizer: Any, texts: Sequence[Sequence[str]]) -> Any:
    """Return the features of rows, given their texts or the first and second texts of pairs."""
    vectors = [vectorizer.transform(column) for column in texts]
    return vectors[0] if len(vectors) == 1 else sparse.hstack([*vectors, vectors[0].multiply(vectors[1])]).tocsr()


def fit_classes(features: Any, labels: Any, num_labels: int) -> Any:
    """Return a function that computes scores (rows, classes). Classes with one row are not learned."""
    is_repeated = np.bincount(labels)[labels] > 1
    features, labels = features[is_repeated], labels[is_repeated]
    classes = np.unique(labels)
    if len(classes) < 2:
        column = classes[0] if len(classes) else 0
        return lambda x: np.tile(np.eye(num_labels)[column], (x.shape[0], 1))
    model = fit_logistic_regression(features, labels)

    def predict(x: Any) -> Any:
        decision = model.decision_function(x)
        scores = np.full((x.shape[0], num_labels), -np.inf)
        scores[:, classes] = np.stack([-decision, decision], axis=1) if decision.ndim == 1 else decision
        return scores

    return predict


def fit_label_sets(features: Any, labels: Any, num_labels: int) -> Any:
    """Return a function that computes scores (rows, classes), which are above 0 for predicted classes."""
    models = []
    for column in labels.T:
        smaller_class = min(column.sum(), len(column) - column.sum())
        models.append(fit_logistic_regression(features, column) if smaller_class > 1 else float(column.mean() - 0.5))

    def predict(x: Any) -> Any:
        columns = [np.full(x.shape[0], m) if isinstance(m, float) else m.decision_function(x) for m in models]
        return np.stack(columns, axis=1)

    return predict


def fit_ratings(features: Any, labels: Any, num_labels: int) -> Any:
    """Return a function that computes ratings (rows,)."""
    from sklearn.linear_model import RidgeCV

    return RidgeCV(alphas=ALPHAS, cv=min(NUM_FOLDS, len(labels))).fit(features, labels).predict


def fit_logistic_regression(features: Any, labels: Any) -> Any:
    """Fit logistic regression, with a regularization that cross-validation chooses. Every class has at least two rows.

    Stratified folds then contain every class in their training part.
    """
    from sklearn.linear_model import LogisticRegressionCV

    return LogisticRegressionCV(Cs=CS, cv=min(NUM_FOLDS, np.bincount(labels).max())).fit(features, labels)


FIT: Mapping[str, Any] = {
    "classification": fit_classes,
    "multi-label": fit_label_sets,
    "regression": fit_ratings,
}
