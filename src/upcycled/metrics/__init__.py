"""Metrics: ``up.metrics``. A name is enough for those of the table; :class:`Metric` says more about one of your own."""

from upcycled.metrics.metric import Metric

__all__ = ["Metric"]
