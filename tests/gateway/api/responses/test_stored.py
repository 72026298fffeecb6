"""Responses that are stored: retrieved, listed, deleted, and found by their project alone."""

from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.gateway.api.responses.test_create import ASK, LOGPROBS, create, events
from tests.gateway.wire.stack import Stack, TenantInTest


def test_a_response_comes_back(sdk: OpenAI) -> None:
    """As it was told, streamed or not."""
    whole = sdk.responses.create(**ASK)
    assert sdk.responses.retrieve(whole.id) == whole
    with sdk.responses.create(**ASK, stream=True) as stream:
        *_, last = stream
    assert last.type == "response.incomplete"
    assert sdk.responses.retrieve(last.response.id) == last.response


def test_log_probabilities_come_back_where_they_are_asked_for(client: httpx.Client) -> None:
    """`include` says so, in either form."""
    made = create(client, include=[LOGPROBS], top_logprobs=1)
    path = f"/v1/responses/{made['id']}"
    assert client.get(path).json()["output"][0]["content"][0]["logprobs"] == []
    for name in ("include", "include[]"):
        assert client.get(path, params={name: LOGPROBS}).json() == made


def test_deleted_is_gone(sdk: OpenAI, client: httpx.Client) -> None:
    """For every call."""
    response = sdk.responses.create(**ASK)
    answer = client.delete(f"/v1/responses/{response.id}")
    assert answer.json() == {"id": response.id, "object": "response", "deleted": True}
    for call in (
        lambda: sdk.responses.retrieve(response.id),
        lambda: sdk.responses.delete(response.id),
        lambda: sdk.responses.cancel(response.id),
        lambda: sdk.responses.input_items.list(response.id),
    ):
        with pytest.raises(openai.NotFoundError):
            call()


def test_what_is_not_to_be_stored_is_not(client: httpx.Client) -> None:
    """It says so, and is not found."""
    made = create(client, store=False)
    assert made["store"] is False
    answer = client.get(f"/v1/responses/{made['id']}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "response_not_found")


def test_another_project_finds_nothing(stack: Stack, tenant: TenantInTest, client: httpx.Client) -> None:
    """Nor does another tenant; a second key of the same project finds all."""
    response_id = create(client)["id"]
    project = stack.seed(do="project", tenant_id=tenant.id, name="other")["id"]
    for key in (tenant.key(project_id=project), stack.tenant().key()):
        with stack.http(key) as stranger:
            for method, path in (
                ("GET", ""),
                ("GET", "?stream=true"),
                ("GET", "/input_items"),
                ("POST", "/cancel"),
                ("DELETE", ""),
            ):
                answer = stranger.request(method, f"/v1/responses/{response_id}{path}")
                assert (answer.status_code, answer.json()["error"]["code"]) == (404, "response_not_found")
    with stack.http(tenant.key()) as same:
        assert same.get(f"/v1/responses/{response_id}").status_code == 200


def test_input_items_are_listed_in_pages(sdk: OpenAI, client: httpx.Client) -> None:
    """The whole context, newest first or oldest; the SDK walks the pages by itself."""
    items: Any = [{"role": "user", "content": f"{number}"} for number in range(5)]
    first = sdk.responses.create(**ASK | {"input": items})
    second = sdk.responses.create(**ASK | {"input": "5"}, previous_response_id=first.id)
    path = f"/v1/responses/{second.id}/input_items"
    page = client.get(path, params={"limit": 2}).json()
    assert (page["object"], page["has_more"], len(page["data"])) == ("list", True, 2)
    assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][1]["id"])
    walked = list(sdk.responses.input_items.list(second.id, limit=2))
    forth = list(sdk.responses.input_items.list(second.id, order="asc"))
    assert walked == forth[::-1]
    texts = [item.content[0].text for item in forth]  # type: ignore[union-attr]
    assert texts == ["0", "1", "2", "3", "4", first.output_text, "5"]
    assert len({item.id for item in forth}) == 7
    assert forth[5].id == first.output[0].id


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("?nonsense=1", "nonsense"),
        ("?include=reasoning.encrypted_content", "include[0]"),
        ("?starting_after=1", "starting_after"),
        ("?stream=true&starting_after=-1", "starting_after"),
        ("?stream=yes", "stream"),
        ("?stream=true", "stream"),
        ("/input_items?limit=0", "limit"),
        ("/input_items?limit=101", "limit"),
        ("/input_items?limit=%D9%A1", "limit"),
        ("/input_items?order=up", "order"),
        ("/input_items?after=msg_1", "after"),
        ("/input_items?before=msg_1", "before"),
        ("/input_items?include=message.output_text.logprobs", "include"),
    ],
)
def test_a_wrong_parameter_is_named(client: httpx.Client, path: str, param: str) -> None:
    """A 400, as with a wrong field."""
    answer = client.get(f"/v1/responses/{create(client)['id']}{path}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_only_a_background_can_be_cancelled(sdk: OpenAI) -> None:
    """The other ones end with their connection."""
    with pytest.raises(openai.BadRequestError, match="background"):
        sdk.responses.cancel(sdk.responses.create(**ASK).id)


@pytest.mark.parametrize("response_id", ["resp_1", "%00", "resp_" + "g" * 32, "x" * 2000, "a/b", "%F0%9F%A6%9C"])
def test_an_id_that_none_can_have_is_unknown(client: httpx.Client, response_id: str) -> None:
    """Nobody asks the database."""
    for path in (response_id, f"{response_id}/input_items"):
        assert client.get(f"/v1/responses/{path}").status_code == 404


def test_while_postgres_is_away_answers_come_unstored(stack: Stack, client: httpx.Client) -> None:
    """They say so, in the stream's end as well; what needs the store is a 503."""
    made = create(client)
    with stack.without_postgres():
        assert create(client)["store"] is False
        assert events(client)[-1]["response"]["store"] is False
        for answer in (
            client.get(f"/v1/responses/{made['id']}"),
            client.post("/v1/responses", json=ASK | {"previous_response_id": made["id"]}),
            client.post("/v1/responses", json=ASK | {"background": True}),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "server_is_overloaded")
            assert "retry-after" in answer.headers
