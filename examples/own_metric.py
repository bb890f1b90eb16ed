"""A metric of one's own: a function of targets and predictions that gives a number.

In a file, with --path examples: metrics = ["own_metric:missed"].
"""

import upcycled as up


def missed(targets, probabilities):
    """The part of the relapses that a screening at a probability of 0.3 would miss."""
    return float((probabilities[targets == 1, 1] < 0.3).mean())


if __name__ == "__main__":
    columns = {"client": "clinic", "label": "relapse", "features": ["age", "weight", "marker"]}
    data = up.data.load("examples/clinics.csv", **columns, test_fraction=0.2)
    metric = up.metrics.Metric(missed, lower_is_better=True)
    result = up.train(data, algorithm=up.FedAvg(), metrics=[metric, "auroc"], iterations=20, progress=False)
    print(f"missed {result.metrics['missed']:.3f}")
