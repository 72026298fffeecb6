"""Models with the OpenAI Python SDK."""

import openai
import pytest
from openai import OpenAI

from tests.sdk.conftest import Dial
from tests.sdk.place import Place


def test_list(client: OpenAI, place: Place) -> None:
    """The list has the model, as a model."""
    page = client.models.list()
    assert place.model in [model.id for model in page]
    assert page.object == "list"
    assert all((model.object, model.owned_by) == ("model", "tollgate") and model.created for model in page.data)


def test_retrieve(client: OpenAI, place: Place) -> None:
    """One model by its name."""
    assert client.models.retrieve(place.model).id == place.model


def test_unknown(client: OpenAI) -> None:
    """A model that doesn't exist is a NotFoundError."""
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("nothing/at/all")
    assert caught.value.code == "model_not_found"


def test_hidden(dial: Dial, place: Place) -> None:
    """A model that the key may not use is in no list and doesn't exist."""
    client = dial(api_key=place.tenant().key(models=["another"]))
    assert list(client.models.list()) == []
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve(place.model)
