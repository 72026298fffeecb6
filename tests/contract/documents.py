"""What the OpenAPI documents say against what the product does: cases made of a document, answers held against it.

Each operation gets cases that fit its schemas, and cases that don't. An answer must be no 5xx, of a status, a content
type, headers and a body that the document names; and what doesn't fit must be refused.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

Json = dict[str, Any]

ANSWERED = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)
SELDOM = {
    "regex",
    "grammar",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_grammar",
    "guided_choice",
    "response_format",
    "text",
    "tools",
    "tool_choice",
    "tool_calls",
    "tool_call_id",
    "use_beam_search",
    "beam_width",
    "length_penalty",
    "early_stopping",
    "best_of",
    "stop",
    "stream_options",
    "session_id",
    "session_ttl",
    "prompt_cache_key",
    "top_logprobs",
    "include",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "min_tokens",
    "logit_bias",
    "stop_token_ids",
    "previous_response_id",
    "background",
    "service_tier",
}  # fields that go with few others
PHASES = (Phase.explicit, Phase.generate)  # a case that fails is small enough to read, and shrinking takes long


@dataclass
class Campaign:
    """Cases of one document against one server.

    Args:
        document: as the server serves it, perhaps made narrower so that cases reach further, see `named`.
        base_url: of the server.
        headers: of every request.
        modes: cases that fit the document, cases that don't, or both.
    """

    document: Json
    base_url: str
    headers: Mapping[str, str]
    modes: tuple[GenerationMode, ...] = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    num_cases: int = 0
    statuses: dict[int, int] = field(default_factory=dict)

    def operations(self) -> Iterator[APIOperation[Any, Any, Any, Any]]:
        """Yield every operation of the document."""
        schema = schemathesis.openapi.from_dict(self.document)
        schema.config.update(base_url=self.base_url)
        for result in schema.get_all_operations():
            yield result.ok()

    def run(self, operation: APIOperation[Any, Any, Any, Any], num_cases: int, number: int) -> None:
        """Try `num_cases` of an operation, in all modes, from seed `number`. Raises where an answer is wrong."""
        for mode in self.modes:
            checks = ANSWERED if mode is GenerationMode.POSITIVE else (*ANSWERED, negative_data_rejection)
            cases = operation.as_strategy(generation_mode=mode)
            self._run(cases, max(1, num_cases // len(self.modes)), number, checks)

    def _run(self, cases: Any, num_cases: int, number: int, checks: tuple[Callable[..., Any], ...]) -> None:
        @seed(number)
        @settings(
            max_examples=num_cases,
            phases=PHASES,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=cases)
        def answers_as_documented(case: Any) -> None:
            response = case.call(headers=dict(self.headers), timeout=120)
            self.num_cases += 1
            self.statuses[response.status_code] = self.statuses.get(response.status_code, 0) + 1
            case.validate_response(response, checks=list(checks))

        answers_as_documented()


def named(document: Json, model: str) -> Json:
    """Return the document with the one model that there is, and little output, so that valid cases are served."""
    narrow = copy.deepcopy(document)
    for schema in narrow["components"]["schemas"].values():
        properties = schema.get("properties", {})
        if schema.get("additionalProperties") is False and "model" in properties:
            properties["model"] = {"enum": [model]}
    return narrow


def placed(document: Json, slug: str) -> Json:
    """Return the document of the management API with the one tenant that there is, so that cases reach its views."""
    narrow = copy.deepcopy(document)
    for operations in narrow["paths"].values():
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] == "slug":
                    parameter["schema"] = {"type": "string", "enum": [slug]}
    return narrow


def lean(document: Json) -> Json:
    """Return a `named` document without fields that go with few others, so that most cases are served.

    For cases that fit alone: it lacks what the server takes.
    """
    narrow = copy.deepcopy(document)
    for schema in narrow["components"]["schemas"].values():
        properties = schema.get("properties", {})
        if schema.get("additionalProperties") is not False:
            continue  # an answer's
        for name in SELDOM & set(properties):
            del properties[name]
        if {"role", "content"} <= set(properties):
            properties["role"] = {"enum": ["user"]}
            properties["content"] = {"type": "string", "maxLength": 40}
            schema["required"] = ["role", "content"]
    return narrow


def closed(document: Json) -> Json:
    """Return the document with answers that have no field but those named, so that one that isn't fails a case."""
    strict = copy.deepcopy(document)
    for schema in strict["components"]["schemas"].values():
        if schema.get("type") == "object" and "properties" in schema:
            schema.setdefault("additionalProperties", False)
    return strict
