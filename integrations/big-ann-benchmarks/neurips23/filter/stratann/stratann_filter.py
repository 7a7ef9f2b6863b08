"""StratANN for the filter track. The tags of an image are a list in a column, and a query finds the
images that have all tags of the query.

Queries that have the same tags are searched in one call. The parameters are the same as in the disk
track, plus "workers", the number of searches at the same time.
"""

import concurrent.futures

import numpy
from benchmark.algorithms.stratann_disk import Stratann as Disk
from benchmark.algorithms.stratann_disk import as_results
from neurips23.filter.base import BaseFilterANN


class Stratann(Disk, BaseFilterANN):
    def __init__(self, metric, index_params):
        self.workers = index_params.get("workers", 8)
        super().__init__(metric, {name: value for name, value in index_params.items() if name != "workers"})

    def track(self):
        return "filter"

    def beside(self, ds):
        if not hasattr(ds, "get_dataset_metadata"):
            return {}
        tags = ds.get_dataset_metadata().tocsr()
        return {"attributes": {"tags": [_tags(tags, row) for row in range(tags.shape[0])]}}

    def filtered_query(self, X, filter, k):
        filter = filter.tocsr()
        alike = {}
        for row in range(len(X)):
            alike.setdefault(tuple(sorted(_tags(filter, row))), []).append(row)
        found = numpy.empty((len(X), k), numpy.uint64)

        def search(tags, rows):
            wanted = f"tags contains all [{', '.join(map(str, tags))}]" if tags else None
            found[rows] = self.index.search(X[rows], k, filter=wanted, **self.query_params)[0]

        with concurrent.futures.ThreadPoolExecutor(self.workers) as pool:
            # `list` raises the exception of a search.
            list(pool.map(search, alike.keys(), alike.values()))
        self.res = as_results(found)
        self.stats = {}


def _tags(matrix, row):
    return matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]].tolist()
