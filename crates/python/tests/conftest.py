"""What the tests share: the fixtures of the repository, and one index of them."""

import pathlib

import pytest

import stratann

FIXTURES = pathlib.Path(__file__).resolve().parents[3] / "fixtures"


@pytest.fixture(scope="session")
def fixtures():
    return FIXTURES


@pytest.fixture(scope="session")
def base():
    return stratann.read(FIXTURES / "photo-sift-20k.base.u8bin")


@pytest.fixture(scope="session")
def queries():
    return stratann.read(FIXTURES / "photo-sift-20k.query.u8bin")


@pytest.fixture(scope="session")
def truth():
    return stratann.read(FIXTURES / "photo-sift-20k.truth100.bin")


@pytest.fixture(scope="session")
def small(base):
    """Two thousand rows: enough to be an index, quick to build."""
    return base[:2000]


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """The folder of an index of photo-sift-20k. Tests must not change it."""
    path = tmp_path_factory.mktemp("photos") / "photos.idx"
    stratann.build(FIXTURES / "photo-sift-20k.base.u8bin", path)
    return path


@pytest.fixture
def index(photos):
    return stratann.open(photos)
