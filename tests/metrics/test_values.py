"""The metrics by name: scikit-learn's values, what is not defined, and what they have a meaning for."""

from __future__ import annotations

import re

import numpy as np
import pytest
from sklearn import metrics as theirs

import upcycled as up
from tests.wording import has_all
from upcycled.losses import BinaryCrossEntropy, CrossEntropy, Multilabel, Poisson, SquaredError
from upcycled.metrics import METRICS, as_metrics, baseline, check_metrics, constant_outputs, measure, predictions_of

RNG = np.random.default_rng(0)
TWO = RNG.integers(0, 2, 60), RNG.normal(size=(60, 2)).astype(np.float32)
MANY = RNG.integers(0, 4, 80), RNG.normal(size=(80, 4)).astype(np.float32)
LABELS = (RNG.random((50, 3)) < 0.4).astype(np.float32), RNG.normal(size=(50, 3)).astype(np.float32)
NUMBERS = RNG.normal(size=40).astype(np.float32), RNG.normal(size=(40, 1)).astype(np.float32)
PAIRS = RNG.normal(size=(40, 2)).astype(np.float32), RNG.normal(size=(40, 2)).astype(np.float32)


def softmax(outputs):
    e = np.exp(outputs.astype(np.float64))
    return e / e.sum(axis=1, keepdims=True)


def ours(name, objective, case):
    return measure(as_metrics([name]), objective, *case)[name]


def of_two(y, z):
    p = softmax(z)[:, 1]
    said = (p > 0.5).astype(int)
    return {
        "accuracy": theirs.accuracy_score(y, said),
        "balanced_accuracy": theirs.balanced_accuracy_score(y, said),
        "auroc": theirs.roc_auc_score(y, p),
        "auprc": theirs.average_precision_score(y, p),
        "average_precision": theirs.average_precision_score(y, p),
        "f1": theirs.f1_score(y, said),
        "f1_macro": theirs.f1_score(y, said, average="macro"),
        "f1_micro": theirs.f1_score(y, said, average="micro"),
        "f1_weighted": theirs.f1_score(y, said, average="weighted"),
        "precision": theirs.precision_score(y, said),
        "precision_macro": theirs.precision_score(y, said, average="macro"),
        "recall": theirs.recall_score(y, said),
        "recall_macro": theirs.recall_score(y, said, average="macro"),
        "sensitivity": ((said == 1) & (y == 1)).sum() / (y == 1).sum(),
        "specificity": ((said == 0) & (y == 0)).sum() / (y == 0).sum(),
        "mcc": theirs.matthews_corrcoef(y, said),
        "kappa": theirs.cohen_kappa_score(y, said),
        "brier": theirs.brier_score_loss(y, p),
        "log_loss": theirs.log_loss(y, p),
    }


def test_two_classes_with_two_outputs_or_one_give_scikit_learns_values():
    y, z = TWO
    expected = of_two(y, z)
    margin = (z[:, 1:] - z[:, :1]).astype(np.float64)  # one logit with the same probability
    for name, value in expected.items():
        assert ours(name, CrossEntropy(), TWO) == pytest.approx(value, rel=1e-9), name
        assert ours(name, BinaryCrossEntropy(), (y, margin)) == pytest.approx(value, rel=1e-6), name
    assert set(expected) | {"ece"} == {name for name, one in METRICS.items() if "two classes" in one.fits}


def test_several_classes_give_scikit_learns_values():
    y, z = MANY
    p, said = softmax(z), z.argmax(axis=1)
    hits = y[:, None] == np.arange(4)
    expected = {
        "accuracy": (said == y).mean(),
        "balanced_accuracy": theirs.balanced_accuracy_score(y, said),
        "auroc": theirs.roc_auc_score(y, p, multi_class="ovr", average="macro"),
        "auprc": theirs.average_precision_score(hits, p, average="macro"),
        "f1_macro": theirs.f1_score(y, said, average="macro"),
        "f1_weighted": theirs.f1_score(y, said, average="weighted"),
        "precision_macro": theirs.precision_score(y, said, average="macro"),
        "mcc": theirs.matthews_corrcoef(y, said),
        "kappa": theirs.cohen_kappa_score(y, said),
        "brier": ((p - hits) ** 2).sum(axis=1).mean(),
        "log_loss": theirs.log_loss(y, p),
    }
    of_two_only = {name for name, one in METRICS.items() if "two classes" in one.fits and "classes" not in one.fits}
    assert of_two_only == {"f1", "precision", "recall", "sensitivity", "specificity"}
    for name, value in expected.items():
        assert ours(name, CrossEntropy(), MANY) == pytest.approx(value, rel=1e-9), name


def test_labels_give_scikit_learns_values():
    y, z = LABELS
    p = 1 / (1 + np.exp(-z.astype(np.float64)))
    said = (p > 0.5).astype(int)
    expected = {
        "auroc": theirs.roc_auc_score(y, p, average="macro"),
        "auprc": theirs.average_precision_score(y, p, average="macro"),
        "f1_macro": theirs.f1_score(y, said, average="macro"),
        "f1_micro": theirs.f1_score(y, said, average="micro"),
        "recall_macro": theirs.recall_score(y, said, average="macro"),
        "brier": ((p - y) ** 2).mean(),
    }
    for name, value in expected.items():
        assert ours(name, Multilabel(), LABELS) == pytest.approx(value, rel=1e-9), name


@pytest.mark.parametrize("case", [NUMBERS, PAIRS], ids=["one number", "two numbers"])
def test_numbers_give_scikit_learns_values(case):
    y, z = case[0].astype(np.float64), case[1].astype(np.float64).reshape(case[0].shape)
    expected = {
        "rmse": theirs.root_mean_squared_error(y, z),
        "mae": np.abs(y - z).mean(),
        "median_absolute_error": theirs.median_absolute_error(y, z),
        "mape": (np.abs(y - z) / np.abs(y)).mean(),
        "r2": theirs.r2_score(y, z),
        "explained_variance": theirs.explained_variance_score(y, z),
    }
    assert set(expected) == {name for name, one in METRICS.items() if "numbers" in one.fits}
    for name, value in expected.items():
        assert ours(name, SquaredError(), case) == pytest.approx(value, rel=1e-9), name


def test_the_calibration_error_is_the_gap_in_each_bin():
    # Probabilities 0.95 (right) and 0.93 (wrong) share a bin: |1.88 - 1| = 0.88; 0.6 (right) is alone: |0.6 - 1| = 0.4.
    p = np.array([[0.05, 0.95], [0.93, 0.07], [0.6, 0.4]])
    assert METRICS["ece"].function(np.array([1, 1, 0]), p) == pytest.approx((0.88 + 0.4) / 3)


ONE_CLASS = np.ones(5, dtype=np.int64), RNG.normal(size=(5, 2)).astype(np.float32)
NO_POSITIVE = np.zeros(5, dtype=np.int64), ONE_CLASS[1]


def test_what_is_not_defined_is_left_out_and_nothing_warns():
    names = [name for name, one in METRICS.items() if "two classes" in one.fits]
    found = measure(as_metrics(names), CrossEntropy(), *ONE_CLASS)
    assert not {"auroc", "specificity", "mcc", "kappa"} & set(found)
    found = measure(as_metrics(names), CrossEntropy(), *NO_POSITIVE)
    assert not {"auroc", "auprc", "f1", "recall", "sensitivity", "mcc", "kappa"} & set(found)
    many = [name for name, one in METRICS.items() if "classes" in one.fits]
    # Class 2 of three has no sample, and one of the answers is class 2.
    outputs = np.array([[3, 0, 0], [0, 3, 0], [0.5, 0, 3], [0, 2, 1]], dtype=np.float32)
    found = measure(as_metrics(many), CrossEntropy(), np.array([0, 1, 0, 1]), outputs)
    assert set(found) == set(many)
    # The mean is over the two classes that are there.
    column, is_it = softmax(outputs)[:, 0], np.array([1, 0, 1, 0])
    other = softmax(outputs)[:, 1]
    assert found["auroc"] == pytest.approx(
        (theirs.roc_auc_score(is_it, column) + theirs.roc_auc_score(1 - is_it, other)) / 2
    )
    numbers = [name for name, one in METRICS.items() if "numbers" in one.fits]
    found = measure(as_metrics(numbers), SquaredError(), np.zeros(1, np.float32), np.ones((1, 1), np.float32))
    assert set(found) == {"rmse", "mae", "median_absolute_error"}
    blown = np.array([[np.inf, 0.0]], dtype=np.float32)
    assert measure(as_metrics(["accuracy"]), CrossEntropy(), np.array([0]), blown) == {}


def test_predictions_are_probabilities_or_values():
    z = np.array([[0.0], [np.log(3.0)]])
    assert predictions_of(BinaryCrossEntropy(), z, np.array([0, 1])).tolist() == pytest.approx([0.5, 0.75])
    assert predictions_of(Poisson(), z, np.array([1.0, 2.0])).tolist() == pytest.approx([1.0, 3.0])
    assert predictions_of(SquaredError(), z, np.array([1.0, 2.0])).shape == (2,)
    assert predictions_of(SquaredError(), np.ones((2, 1)), np.ones((2, 1))).shape == (2, 1)


def test_a_model_that_learns_nothing_predicts_shares_and_means():
    y, seen = np.array([1, 1, 0, 1]), np.array([0, 1, 1, 1, 0])
    found = baseline(as_metrics(["brier", "auroc"]), CrossEntropy(), seen, y, 2)
    # Three fifths say class 1: three of four are right.
    assert found["accuracy"] == 0.75
    assert found["loss"] == pytest.approx(-(3 * np.log(0.6) + np.log(0.4)) / 4)
    assert found["brier"] == pytest.approx((3 * 0.16 + 0.36) / 4)
    assert found["auroc"] == 0.5
    assert baseline((), BinaryCrossEntropy(), seen, y, 1)["loss"] == pytest.approx(found["loss"])
    numbers = baseline(as_metrics(["rmse"]), SquaredError(), np.array([1.0, 3.0]), np.array([2.0, 4.0]), 1)
    assert numbers == {"loss": pytest.approx(2.0), "rmse": pytest.approx(2**0.5)}
    assert np.exp(constant_outputs(Poisson(), np.array([1.0, 3.0]), 1)).tolist() == pytest.approx([2.0])
    labels = constant_outputs(Multilabel(), np.array([[0.0, 1.0], [0.0, 0.0], [1.0, 1.0]]), 2)
    assert (1 / (1 + np.exp(-labels))).tolist() == pytest.approx([1 / 3, 2 / 3])


@pytest.mark.parametrize(
    ("targets", "count", "wrong", "listed"),
    [
        ("numbers", 1, "auroc", "rmse, mae"),
        ("classes", 3, "sensitivity", "accuracy, balanced_accuracy, auroc"),
        ("classes", 2, "rmse", "specificity"),
        ("labels", 3, "kappa", "auroc"),
    ],
)
def test_a_metric_without_a_meaning_is_refused_with_those_that_have_one(targets, count, wrong, listed):
    with pytest.raises(up.InputError) as caught:
        check_metrics(as_metrics([wrong]), targets, count)
    assert has_all(str(caught.value), "metrics", f"'{wrong}'")
    assert listed in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("auroc", "it must be a list of names"),
        (["aurok"], r"did you mean 'auroc'\?"),
        ([3], r"\(targets, predictions\)"),
        (["auroc", "auroc"], "'auroc' twice"),
        ([{"noisy_accuracy": len}], "global_, noisy_, validation_"),
        (["no_such_module_here:cost"], "there is no module"),
    ],
)
def test_what_is_no_metric_is_refused_in_a_sentence(asked, words):
    with pytest.raises(up.InputError) as caught:
        as_metrics(asked)
    assert re.search(words, str(caught.value))


def test_a_function_of_ones_own_has_a_name_and_a_way_that_is_better():
    def cost(targets, predictions):
        targets[:] = 0  # a copy: nobody else's
        return np.float32(predictions.shape[1])

    metric = up.metrics.Metric(cost, lower_is_better=True)
    found = as_metrics(["auroc", metric, {"again": metric, "two": cost}])
    assert [(one.name, one.lower_is_better) for one in found] == [
        *(("auroc", False), ("cost", True), ("again", True), ("two", False)),
    ]
    values = measure(found, CrossEntropy(), *TWO)
    assert values["cost"] == 2.0
    assert values["auroc"] == ours("auroc", CrossEntropy(), TWO)


def test_a_function_that_fails_is_one_sentence_and_nothing_at_all_where_nobody_may_know():
    def fails(targets, predictions):
        raise ZeroDivisionError("no samples")

    def words(targets, predictions):
        return "many"

    for wrong, said in (
        (fails, "'fails' failed with .*no samples$"),
        (words, "'words' returned 'many'; it must return"),
    ):
        with pytest.raises(up.InputError, match=f"metrics {said}"):
            measure(as_metrics([wrong]), CrossEntropy(), *TWO)
        assert measure(as_metrics([wrong]), CrossEntropy(), *TWO, is_silent=True) == {}

    def warns(targets, predictions):
        import warnings

        warnings.warn("ill-defined", RuntimeWarning, stacklevel=1)
        return float(np.float64(0) / 0)

    assert measure(as_metrics([warns]), CrossEntropy(), *TWO) == {}
