"""Collections that are too large for one machine, on a Ray cluster: `pip install 'stratann[ray]'`.

    import ray, stratann.ray
    from stratann.ray import Resources

    ray.init()
    stratann.ray.build_shards("base.fbin", "/shared/photos", shards=16, resources=Resources(cpus=4), memory=8 << 30)
    texts = ray.data.read_parquet("s3://..")
    stratann.ray.build_shards(texts, "/shared/texts", 16, vector_column="embedding", id_column="id")

    with stratann.ray.ShardedIndex("/shared/photos", resources=Resources(cpus=4, custom={"ssd": 1})) as index:
        ids, distances = index.search(queries, k=10)

    with stratann.ray.Cluster("/shared/photos.idx", servers=4, memory=Resources(custom={"ram": 1})) as cluster:  # preset "distvs"
        ids, distances = cluster.search(queries, k=10)

A shard is an index of a part of the rows; all share one codebook. They are independent: each is searched by itself, and a
search asks all of them and merges what they find. That is how Milvus and others divide a collection. It costs more than one
index of all rows, the more so the more shards there are (`bench/shards.py` says how much), since each is walked from its own
entry.

- `build` builds a catalog of shards by tasks of the cluster; readers see all of it or nothing
- `search` opens it in actors, and searches
- `cluster` is of one index that is not divided: a memory server, storage and compute servers (DistVS) as actors
- `placement` puts tasks and actors on nodes, asks them by a deadline, and has Ray start those anew that die
- `source` reads vectors by Ray Data, `staging` makes a folder visible as a whole

Tested with Ray 2.60.
"""

try:
    import ray as _ray
    import ray.data as _data
except ImportError as error:
    raise ImportError(f"stratann.ray needs Ray with Ray Data ({error}): pip install 'stratann[ray]'") from error

from .build import build_shards
from .cluster import Cluster
from .placement import ActorsError, DeadlineError, Resources
from .search import ShardedIndex
from .source import read

__all__ = ["ActorsError", "Cluster", "DeadlineError", "Resources", "ShardedIndex", "build_shards", "read"]
