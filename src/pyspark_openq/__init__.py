"""Spark looks into packages named `pyspark_...` for data sources: this one is `format("openq")`."""

from openq.pipeline.source import DefaultSource

__all__ = ["DefaultSource"]
