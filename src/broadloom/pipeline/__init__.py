"""Pipeline on Spark: from raw inputs to a verified plan and a report; executors run the same kernels.

Names are imported on first use, so that importing this folder does not load pyspark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broadloom.pipeline.run import RunConfig, RunOutcome, run_pipeline
    from broadloom.pipeline.spark_assign import assign_on_spark
    from broadloom.pipeline.spark_inspect import Verdict, measure_on_spark, verify_on_spark
    from broadloom.pipeline.spark_link import link_on_spark, top_partners
    from broadloom.pipeline.spark_market import assign_market_on_spark, steiner_mixing, summarize_log
    from broadloom.pipeline.spark_session import SparkEngine, need_spark, parse_conf, session
    from broadloom.pipeline.stream import maintain_on_spark

__all__ = [
    "RunConfig",
    "RunOutcome",
    "SparkEngine",
    "Verdict",
    "assign_market_on_spark",
    "assign_on_spark",
    "link_on_spark",
    "maintain_on_spark",
    "measure_on_spark",
    "need_spark",
    "parse_conf",
    "run_pipeline",
    "session",
    "steiner_mixing",
    "summarize_log",
    "top_partners",
    "verify_on_spark",
]

_MODULES = {
    "run": ("RunConfig", "RunOutcome", "run_pipeline"),
    "spark_assign": ("assign_on_spark",),
    "spark_inspect": ("Verdict", "measure_on_spark", "verify_on_spark"),
    "spark_link": ("link_on_spark", "top_partners"),
    "spark_market": ("assign_market_on_spark", "steiner_mixing", "summarize_log"),
    "spark_session": ("SparkEngine", "need_spark", "parse_conf", "session"),
    "stream": ("maintain_on_spark",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
