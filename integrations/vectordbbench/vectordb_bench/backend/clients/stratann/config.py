"""The options of a run with StratANN: its folder, and how the index is built and searched."""

from pydantic import BaseModel

from ..api import DBCaseConfig, DBConfig, MetricType

METRICS = {MetricType.L2: "l2", MetricType.COSINE: "cosine", MetricType.IP: "ip", MetricType.DP: "ip"}


class StratannConfig(DBConfig):
    """A folder for indexes."""

    path: str = "stratann-bench"

    def to_dict(self) -> dict:
        return {"path": self.path}


class StratannIndexConfig(BaseModel, DBCaseConfig):
    """`memory` is the maximum memory of searches. Searches use `list_size`, or `recall` instead."""

    metric_type: MetricType | None = None
    preset: str = "stratann"
    degree: int | None = None
    build_list: int = 100
    memory: str | None = None
    list_size: int | None = None
    recall: float | None = None

    def metric(self) -> str:
        """StratANN's name of the metric."""
        if self.metric_type not in METRICS:
            msg = f"the metric is {self.metric_type}; StratANN has {', '.join(METRICS)}. Pass one of these"
            raise ValueError(msg)
        return METRICS[self.metric_type]

    def index_param(self) -> dict:
        """Arguments of `stratann.build`."""
        degree = {} if self.degree is None else {"degree": self.degree}
        return {"metric": self.metric(), "preset": self.preset, "build_list": self.build_list, **degree}

    def search_param(self) -> dict:
        """Arguments of `stratann.Index.search`. The benchmark needs only ids, so searches do not
        read vectors for exact distances.
        """
        given = {"list_size": self.list_size, "recall": self.recall, "exact": False}
        return {name: value for name, value in given.items() if value is not None}
