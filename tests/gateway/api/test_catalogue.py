"""The catalogue of errors: complete, and the page in docs/api is made of it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from gateway.api import catalogue
from gateway.api.errors import ApiError
from tests.product import ROOT

PAGE = ROOT / "docs" / "api" / "errors.md"
SOURCES = sorted(
    path for folder in ("api", "realtime", "admission", "workers") for path in (ROOT / "gateway" / folder).rglob("*.py")
)


def codes_in(path: Path) -> Iterator[str]:
    """Yield every code that a file gives an error: `code="..."` in a call, `x.error_code = "..."`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword):
            names, value = [node.arg], node.value
        elif isinstance(node, ast.Assign):
            names, value = [getattr(target, "attr", None) for target in node.targets], node.value
        else:
            continue
        if {"code", "error_code"} & set(names) and isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value


def test_every_code_is_in_the_catalogue() -> None:
    """No error carries a code that the page does not explain, and none is explained that no error carries."""
    used = {code for path in SOURCES for code in codes_in(path)}
    named = {code for kind in catalogue.kinds() for code in kind.codes}
    own = {kind.code for kind in catalogue.kinds()}
    assert used - own == named - own
    assert not named & own


@pytest.mark.parametrize("kind", catalogue.kinds(), ids=lambda kind: kind.__name__)
def test_every_error_says_when_it_comes_and_what_to_do(kind: type[ApiError]) -> None:
    """Both are sentences, on one line of a table."""
    for text in (catalogue.when(kind), kind.fix):
        assert text.endswith(".") and "|" not in text and "\n" not in text
    assert all(meaning and "|" not in meaning for meaning in kind.codes.values())
    assert 400 <= kind.status < 600


def test_the_page_is_up_to_date() -> None:
    """Else: python -m gateway.api.catalogue docs/api/errors.md."""
    page = PAGE.read_text(encoding="utf-8")
    assert catalogue.renewed(page) == page


def test_a_page_without_the_marks_is_left_alone() -> None:
    """The tables have one place."""
    with pytest.raises(ValueError, match="marks"):
        catalogue.renewed("# Errors\n")


@pytest.mark.parametrize("status", sorted({kind.status for kind in catalogue.kinds()}))
def test_the_named_exception_is_the_sdks(status: int) -> None:
    """The exception in the table is the one that the SDK has, and raises for that status."""
    import httpx2  # the SDK's own client

    request = httpx2.Request("POST", "http://localhost/v1")
    with openai.OpenAI(api_key="x", base_url="http://localhost/v1") as client:
        error = client._make_status_error_from_response(httpx2.Response(status, request=request, json={}))
        assert client._should_retry(error.response) is catalogue.is_retried(status)
    assert type(error).__name__ == catalogue.sdk_class(status)
