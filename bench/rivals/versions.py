"""The versions of other programs that are measured here, in one place."""

# Of crates.io.
DISKANN = "0.61.0"

# Of PyPI, with all that they need to be installed alone.
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
