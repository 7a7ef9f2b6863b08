"""The versions of the programs that are compared with StratANN."""

# The version on crates.io.
DISKANN = "0.61.0"

# The versions on PyPI.
PACKAGES = {
    "numpy": "2.4.6",
    "hnswlib": "0.8.0",
    "faiss-cpu": "1.15.1",
    "usearch": "2.26.6",
    "lancedb": "0.40.0",
    "qdrant-edge-py": "0.9.0",
}


def pinned(*names):
    """Returns the arguments of `pip install` for `names`, or for all packages without `names`."""
    return [f"{name}=={PACKAGES[name]}" for name in names or PACKAGES]
