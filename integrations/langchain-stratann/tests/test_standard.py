"""Runs LangChain's own tests of vector stores, unmodified."""

import pytest
from langchain_stratann import StratannVectorStore
from langchain_tests.integration_tests import VectorStoreIntegrationTests


class TestStratannVectorStore(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path):
        store = StratannVectorStore(self.get_embeddings(), tmp_path / "documents.idx")
        yield store
        store.close()


class _OtherMetric(VectorStoreIntegrationTests):
    metric: str

    @pytest.fixture
    def vectorstore(self, tmp_path):
        # Embeddings have length 1. Otherwise, a longer vector could have a larger inner product
        # with a query than the query's own vector.
        store = StratannVectorStore(Normalised(self.get_embeddings()), tmp_path / "documents.idx", metric=self.metric)
        yield store
        store.close()


class TestInnerProduct(_OtherMetric):
    metric = "ip"


class TestSquaredDistance(_OtherMetric):
    metric = "l2"


class Normalised:
    def __init__(self, model):
        self.model = model

    def embed_query(self, text):
        vector = self.model.embed_query(text)
        length = sum(value * value for value in vector) ** 0.5
        return [value / length for value in vector]

    def embed_documents(self, texts):
        return [self.embed_query(text) for text in texts]

    async def aembed_query(self, text):
        return self.embed_query(text)

    async def aembed_documents(self, texts):
        return self.embed_documents(texts)
