"""What a run with StratANN is told: where, and how the index is built and searched."""

from pydantic import BaseModel

from ..api import DBCaseConfig, DBConfig, MetricType

METRICS = {MetricType.L2: "l2", MetricType.COSINE: "cosine", MetricType.IP: "ip", MetricType.DP: "ip"}


class StratannConfig(DBConfig):
    """A folder for indexes."""

    path: str = "stratann-bench"

    def to_dict(self) -> dict:
        return {"path": self.path}


class StratannIndexConfig(BaseModel, DBCaseConfig):
    """`memory` is what searches may take; a list size, or a recall that is asked for."""

    metric_type: MetricType | None = None
    preset: str = "stratann"
    degree: int | None = None
    build_list: int = 100
    memory: str | None = None
    list_size: int | None = None
    recall: float | None = None

    def metric(self) -> str:
        """The metric as StratANN calls it."""
        if self.metric_type not in METRICS:
            msg = f"the metric is {self.metric_type}: StratANN has {', '.join(METRICS)}"
            raise ValueError(msg)
        return METRICS[self.metric_type]

    def index_param(self) -> dict:
        """Arguments of `stratann.build`."""
        degree = {} if self.degree is None else {"degree": self.degree}
        return {"metric": self.metric(), "preset": self.preset, "build_list": self.build_list, **degree}

    def search_param(self) -> dict:
        """Arguments of `stratann.Index.search`: ids are asked for and no distances, so nothing is read for these."""
        given = {"list_size": self.list_size, "recall": self.recall, "exact": False}
        return {name: value for name, value in given.items() if value is not None}
