"""Runs all classes of Haystack's own tests of document stores.

Two methods are overridden, as Haystack intends. `assert_documents_are_equal` compares in any order,
with embeddings as float32. `test_write_documents` tests a write without a policy.
"""

import numpy
import pytest
from haystack import Document
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.testing import document_store as suite
from haystack.testing import document_store_async as suite_async
from haystack_stratann import StratannDocumentStore


class _Store:
    @pytest.fixture
    def document_store(self, tmp_path):
        store = StratannDocumentStore(tmp_path / "documents.idx")
        yield store
        store.close()

    @staticmethod
    def assert_documents_are_equal(received, expected):
        received, expected = (sorted(documents, key=lambda one: one.id) for documents in (received, expected))
        assert [plain(one) for one in received] == [plain(one) for one in expected]
        for one, other in zip(received, expected):
            assert (one.embedding is None) == (other.embedding is None)
            if one.embedding is not None:
                numpy.testing.assert_array_equal(one.embedding, numpy.float32(other.embedding))


def plain(document):
    return {**document.to_dict(flatten=False), "embedding": None}


class TestDocumentStore(
    _Store,
    suite.DocumentStoreBaseExtendedTests,
    suite.CountDocumentsByFilterTest,
    suite.CountUniqueMetadataByFilterTest,
    suite.GetMetadataFieldsInfoTest,
    suite.GetMetadataFieldMinMaxTest,
    suite.GetMetadataFieldUniqueValuesTest,
):
    def test_write_documents(self, document_store):
        document = Document(content="test doc")
        assert document_store.write_documents([document]) == 1
        with pytest.raises(DuplicateDocumentError):
            document_store.write_documents([document])


class TestDocumentStoreAsync(
    _Store,
    suite_async.CountDocumentsAsyncTest,
    suite_async.WriteDocumentsAsyncTest,
    suite_async.DeleteDocumentsAsyncTest,
    suite_async.DeleteAllAsyncTest,
    suite_async.DeleteByFilterAsyncTest,
    suite_async.UpdateByFilterAsyncTest,
    suite_async.FilterDocumentsAsyncTest,
    suite_async.CountDocumentsByFilterAsyncTest,
    suite_async.CountUniqueMetadataByFilterAsyncTest,
    suite_async.GetMetadataFieldsInfoAsyncTest,
    suite_async.GetMetadataFieldMinMaxAsyncTest,
    suite_async.GetMetadataFieldUniqueValuesAsyncTest,
):
    @pytest.mark.asyncio
    async def test_write_documents_async(self, document_store):
        document = Document(content="test doc")
        assert await document_store.write_documents_async([document]) == 1
        with pytest.raises(DuplicateDocumentError):
            await document_store.write_documents_async([document])
