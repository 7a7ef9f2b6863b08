"""Collections that are too large for one machine, on a Ray cluster: `pip install 'stratann[ray]'`.

```python
import ray, stratann.ray
from stratann.ray import Resources

ray.init()
four = Resources(cpus=4)
stratann.ray.build_shards("base.fbin", "/shared/photos", 16, resources=four, memory=8 << 30)
texts = ray.data.read_parquet("s3://..")
stratann.ray.build_shards(texts, "/shared/texts", 16, vector_column="embedding", id_column="id")

ssd = Resources(cpus=4, custom={"ssd": 1})
with stratann.ray.ShardedIndex("/shared/photos", resources=ssd) as index:
    ids, distances = index.search(queries, k=10)

# An index of the preset "distvs".
ram = Resources(custom={"ram": 1})
with stratann.ray.Cluster("/shared/photos.idx", servers=4, memory=ram) as cluster:
    ids, distances = cluster.search(queries, k=10)
```

A shard is an index of a part of the vectors, and all shards share one codebook. A search asks every
shard and merges the results, as in Milvus. Such a search costs more than a search of a single
index, because it walks the graph of each shard from an entry point. The additional cost grows with
the number of shards; `bench/shards.py` measures this cost.

- `build` builds a catalog of shards in tasks of the cluster. Readers see no catalog before it is
  complete.
- `search` opens the catalog in actors, which search.
- `cluster` serves one undivided index: a memory server, a storage server and compute servers
  (DistVS) as actors.
- `placement` places tasks and actors on nodes, calls actors with a deadline, and lets Ray restart
  them.
- `source` reads vectors with Ray Data. `staging` makes a complete folder visible by one rename.

Tested with Ray 2.60.
"""

try:
    import ray as _ray
    import ray.data as _data
except ImportError as error:
    raise ImportError(f"stratann.ray needs Ray with Ray Data ({error}). Run pip install 'stratann[ray]'") from error

from .build import build_shards
from .cluster import Cluster
from .placement import ActorsError, DeadlineError, Resources
from .search import ShardedIndex
from .source import read

__all__ = ["ActorsError", "Cluster", "DeadlineError", "Resources", "ShardedIndex", "build_shards", "read"]
