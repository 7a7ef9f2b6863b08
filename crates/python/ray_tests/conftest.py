"""What the tests share: a Ray cluster of three nodes on this machine, faults in its workers, and the repository's fixtures."""

import os
import pathlib
import tempfile

import pytest

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

import stratann  # noqa: E402
import stratann.ray  # noqa: E402

FIXTURES = pathlib.Path(__file__).resolve().parents[3] / "fixtures"
NODES = 3


class Faults:
    """What is to go wrong in workers: each fault that was planned happens once, in whichever task of that shard comes first.

    `after-build` ends the process when the index is built and not yet in its place, `after-place` when it is; `refused` is an
    OSError in place of the build, `wrong` a ValueError.
    """

    def __init__(self, folder):
        self._folder = folder

    def plan(self, fault, shard, times=1):
        for time in range(times):
            (self._folder / f"{fault}.{shard}.{time}").touch()

    def left(self):
        return sorted(path.name for path in self._folder.iterdir())

    def clear(self):
        for path in self._folder.iterdir():
            path.unlink()


def _faulty(folder):
    """What each worker does first: it has the package ask for the faults that are planned."""

    def happens(fault, shard):
        for plan in sorted(pathlib.Path(folder).glob(f"{fault}.{shard}.*")):
            try:
                plan.unlink()
                return True
            except FileNotFoundError:
                continue
        return False

    def setup():
        import stratann.ray.staging

        build, place = stratann.build, stratann.ray.staging.Staging.place

        def faulty_build(file, path, **options):
            shard = pathlib.Path(path).parent.name.split(".")[0]
            if happens("refused", shard):
                raise OSError("the disk says no")
            if happens("wrong", shard):
                raise ValueError("the rows are wrong")
            index = build(file, path, **options)
            if happens("after-build", shard):
                os._exit(1)
            return index

        def faulty_place(self, index, shard):
            place(self, index, shard)
            if happens("after-place", shard):
                os._exit(1)

        stratann.build, stratann.ray.staging.Staging.place = faulty_build, faulty_place

    return setup


@pytest.fixture(scope="session")
def _faults():
    with tempfile.TemporaryDirectory(prefix="stratann-faults-") as folder:
        yield Faults(pathlib.Path(folder))


@pytest.fixture(scope="session", autouse=True)
def cluster(_faults):
    """Three nodes of two CPUs and one "own" each; the first is where the tests run."""
    node = {"num_cpus": 2, "object_store_memory": 100 << 20, "resources": {"own": 1}}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    for _ in range(NODES - 1):
        cluster.add_node(**node)
    hook = {"worker_process_setup_hook": _faulty(str(_faults._folder))}
    ray.init(address=cluster.address, runtime_env=hook, log_to_driver=False, logging_level="error")
    cluster.wait_for_nodes()
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def faults(_faults):
    yield _faults
    left = _faults.left()
    _faults.clear()
    assert left == [], "some planned faults did not occur"


@pytest.fixture(scope="session")
def base():
    return stratann.read(FIXTURES / "photo-sift-20k.base.u8bin")


@pytest.fixture(scope="session")
def queries():
    return stratann.read(FIXTURES / "photo-sift-20k.query.u8bin")


@pytest.fixture(scope="session")
def small(base):
    """Two thousand rows: quick to build."""
    return base[:2000]


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """The folder of photo-sift-20k in three shards, one built on each node, and the report. Tests must not change it."""
    folder = tmp_path_factory.mktemp("shards") / "photos"
    seen = []
    report = stratann.ray.build_shards(
        FIXTURES / "photo-sift-20k.base.u8bin",
        folder,
        3,
        degree=24,
        build_list=40,
        memory=512 << 20,
        resources=stratann.ray.Resources(cpus=2),
        progress=lambda *news: seen.append(news),
    )
    return folder, report, seen


@pytest.fixture(scope="session")
def few(tmp_path_factory, small):
    """The folder of `small` in three shards. Tests must not change it."""
    folder = tmp_path_factory.mktemp("few") / "few"
    stratann.ray.build_shards(small, folder, 3, degree=24, build_list=40)
    return folder
