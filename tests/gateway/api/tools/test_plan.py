"""From a request's tools and a model to what is rendered, asked for and read."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol import pb
from gateway.api.errors import BadRequest
from gateway.api.formats import Asked
from gateway.api.functions import Function, FunctionTool
from gateway.api.schemas import ChatRequest, parse_chat
from gateway.api.tools.pieces import Content
from gateway.api.tools.plan import MAX_PARALLEL_CALLS, ToolPlan, parser_of, plan_of
from gateway.workers.model import Model, model_from_card
from tests.engine.tiny_model import make_tokenizer
from tests.gateway.api.tools.samples import PLAIN, SWITCH, TOOLS, WEATHER, rendered, template

TEMPLATE_NAMED = "{{ tools }}{{ message.tool_calls }}[TOOL_CALLS]name[ARGS]{}"
NAMED = {"type": "function", "function": {"name": "switch"}}


def model(source: str = PLAIN, special: tuple[str, ...] = ()) -> Model:
    """Return a model with this chat template, and more special tokens."""
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens(list(special))
    card = pb.ModelCard(
        model="m", tokenizer_json=tokenizer.to_str().encode(), chat_template=source, vocab_size=400, eos_token_ids=[2]
    )
    return model_from_card(card, created=0)


def allowed(mode: str, *names: str) -> dict[str, Any]:
    """Return a choice among some tools."""
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def request(**fields: Any) -> ChatRequest:
    """Return a request with these fields."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": msgspec.to_builtins(TOOLS)}
    return msgspec.convert(body | fields, ChatRequest)


def planned(source: str = PLAIN, special: tuple[str, ...] = (), **fields: Any) -> ToolPlan | None:
    """Return the plan of a request with these fields, if it has one."""
    return plan_of(request(**fields), model(source, special))


def plan(source: str = PLAIN, special: tuple[str, ...] = (), **fields: Any) -> ToolPlan:
    """Return the plan of a request with these fields."""
    made = planned(source, special, **fields)
    assert made is not None
    return made


def grammar_of(made: ToolPlan, answer: Asked | None = None) -> str:
    """Return the grammar that is asked for; empty: none."""
    asked = made.asked(answer)
    if asked is None:
        return ""
    assert asked.field == "tools"
    assert asked.grammar.kind == pb.Grammar.KIND_LARK
    return asked.grammar.text


LOOSE = [msgspec.to_builtins(FunctionTool(function=WEATHER))]
SCHEMA = Asked("response_format", pb.Grammar(kind=pb.Grammar.KIND_JSON_SCHEMA, text='{"type": "object"}'))
REGEX = Asked("regex", pb.Grammar(kind=pb.Grammar.KIND_REGEX, text="a*"))


@pytest.mark.parametrize(
    ("fields", "names", "bound", "required", "many"),
    [
        ({}, {"get_weather", "no-thing", "switch"}, True, False, True),  # `switch` is strict
        ({"tools": LOOSE}, {"get_weather"}, False, False, True),
        ({"tools": LOOSE, "tool_choice": "auto"}, {"get_weather"}, False, False, True),
        ({"tools": LOOSE, "parallel_tool_calls": True}, {"get_weather"}, False, False, True),
        ({"tools": LOOSE, "parallel_tool_calls": False}, {"get_weather"}, True, False, False),
        ({"tools": LOOSE, "tool_choice": "required"}, {"get_weather"}, True, True, True),
        ({"tool_choice": NAMED}, {"switch"}, True, True, False),
        ({"tool_choice": allowed("auto", "no-thing")}, {"no-thing"}, True, False, True),
        ({"tool_choice": allowed("required", "no-thing", "switch")}, {"no-thing", "switch"}, True, True, True),
    ],
)
def test_choices(fields: dict[str, Any], names: set[str], bound: bool, required: bool, many: bool) -> None:
    """Which functions may be called, whether one must be, whether several may, and whether that takes a grammar."""
    made = plan(**fields)
    assert {function.name for function in made.functions} == names
    assert (made.required, made.many, bool(grammar_of(made))) == (required, many, bound)
    assert made.parser is not None


NOTHING_TO_CALL = pytest.mark.parametrize("fields", [{"tool_choice": "none"}, {"tools": []}, {"tools": None}])
CALL = {"id": "a", "type": "function", "function": {"name": "switch", "arguments": "{}"}}
CALLED = [{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "a", "content": "x"}]


@NOTHING_TO_CALL
def test_no_tools(fields: dict[str, Any]) -> None:
    """A request that has nothing to do with tools has no plan."""
    assert planned(**fields) is None
    assert parser_of(request(**fields), model()) is None


@NOTHING_TO_CALL
def test_earlier_calls(fields: dict[str, Any]) -> None:
    """Where nothing may be called, earlier calls are told and no tools, and the text is content."""
    made = plan(template("qwen"), ("<tool_call>",), messages=CALLED, **fields)
    assert made.parser is None
    assert made.template_tools is None
    assert made.shown_tokens == []
    assert made.asked(None) is None
    assert made.asked(REGEX) is REGEX


def test_allowed_tools_change_nothing_of_the_prompt() -> None:
    """The model is told of all tools, whichever are allowed: what is cached of the prompt stays."""
    some, every = plan(tool_choice=allowed("auto", "switch")), plan()
    messages = msgspec.convert([{"role": "user", "content": "hi"}], type=ChatRequest.__annotations__["messages"])
    assert some.turns(messages) == every.turns(messages)
    assert "no-thing" in some.turns(messages)[0]["content"]


def test_native_tools_are_not_told_twice() -> None:
    """A template that shows tools gets them; one that does not has them in the turns."""
    native, told = plan(template("qwen")), plan()
    assert native.template_tools is not None
    assert told.template_tools is None


def test_an_answer_in_a_format() -> None:
    """With a format for the answer the output is calls, or such an answer."""
    text = grammar_of(plan(tools=LOOSE), SCHEMA)
    assert 'answer: %json {"type": "object"}' in text
    assert "TEXT" not in text
    assert "answer" not in grammar_of(plan(tool_choice="required"), SCHEMA)


def test_a_format_that_cannot_stand_beside_calls() -> None:
    """A regular expression is refused by name, as long as something may be called."""
    with pytest.raises(BadRequest) as caught:
        plan(tools=LOOSE).asked(REGEX)
    assert caught.value.param == "regex"


def test_markers_that_are_special_tokens() -> None:
    """A marker that is a special token is asked for as text, and stands in the grammar by its id."""
    made = plan(template("qwen"), ("<tool_call>", "</tool_call>"), tool_choice="required")
    tokenizer = model(special=("<tool_call>", "</tool_call>")).tokenizer
    ids = [tokenizer.token_to_id("<tool_call>"), tokenizer.token_to_id("</tool_call>")]
    assert made.shown_tokens == ids
    assert all(f"<[{token}]>" in grammar_of(made) for token in ids)
    assert plan(template("qwen")).shown_tokens == []


def test_a_template_that_takes_one_call() -> None:
    """A model that is asked for one call at a time is made to give one."""
    assert not plan(template("llama"), tool_choice="required").many
    assert plan(template("llama")).many


def test_a_grammar_that_is_too_long() -> None:
    """Schemas that no worker would take together are refused by name."""
    tools = [
        FunctionTool(function=Function(name=f"f{number}", parameters={"description": "x" * 40_000}, strict=True))
        for number in range(4)
    ]
    made = plan(tools=msgspec.to_builtins(tools))
    with pytest.raises(BadRequest) as caught:
        made.asked(None)
    assert caught.value.param == "tools"


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=6,
)
NAME = st.sampled_from(["a", "b", "c d", ""])
OFFERED = st.fixed_dictionaries(
    {"type": st.just("function"), "function": st.fixed_dictionaries({"name": NAME}, optional={"parameters": JSON})}
)
CHOICE = (
    JSON
    | st.sampled_from(["none", "auto", "required", allowed("auto", "a"), allowed("required", "b")])
    | NAME.map(lambda name: {"type": "function", "function": {"name": name}})
)
SAID = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool"])},
    optional={
        "content": st.text(max_size=3),
        "tool_call_id": st.sampled_from(["a", "b"]),
        "tool_calls": st.lists(
            st.builds(
                lambda one, arguments: {
                    "id": one,
                    "type": "function",
                    "function": {"name": one, "arguments": arguments},
                },
                st.sampled_from(["a", "b"]),
                JSON.map(json.dumps) | st.text(max_size=4),
            ),
            max_size=2,
        ),
    },
)
MODELS = {name: model(PLAIN if name == "plain" else template(name)) for name in ("plain", "qwen", "llama", "mistral")}


@given(
    st.sampled_from(sorted(MODELS)),
    st.lists(SAID, min_size=1, max_size=4),
    st.lists(OFFERED, max_size=2) | JSON,
    CHOICE,
    st.sampled_from([None, True, False]),
)
def test_any_request_is_planned_or_refused(
    name: str, messages: Any, tools: Any, choice: Any, many: bool | None
) -> None:
    """Whatever a request says of tools, it is a BadRequest, or it can be rendered, asked for and read."""
    body = {"model": "m", "messages": messages, "tools": tools, "tool_choice": choice, "parallel_tool_calls": many}
    try:
        asked = parse_chat(msgspec.json.encode(body))
        made = plan_of(asked, MODELS[name])
        if made is not None:
            made.asked(None)
    except BadRequest:
        return
    if made is not None:
        rendered(MODELS[name].chat_template, made.turns(asked.messages), made.template_tools)
        if made.parser is not None:
            parser = made.parser()
            assert [*parser.push("hello"), *parser.flush()] == ([] if made.required else [Content("hello")])


def test_a_refused_grammar_is_explained() -> None:
    """A worker that refuses the grammar speaks of a line: that is a function's schema, named as the client has it."""
    made = plan(tool_choice=allowed("required", "no-thing", "switch"))
    problem = 'at 3(14): failed to compile JSON schema: Unimplemented keys: ["not"] 1 | start: call 2 | arguments_1'
    field, message = made.explained(problem)
    assert field == "tools[2].function.parameters"
    assert "`tools[2].function.parameters`" in message
    assert 'failed to compile JSON schema: Unimplemented keys: ["not"]. Change' in message
    assert "`strict`" in message
    assert "start" not in message
    assert made.explained("the grammar is too much work") == ("tools", "`tools`: the grammar is too much work")


@pytest.mark.parametrize("source", [PLAIN, template("llama"), template("mistral"), TEMPLATE_NAMED])
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_schemas_come_first_in_a_grammar(source: str, choice: str) -> None:
    """Whatever the form, the lines after the first have the functions' schemas, in their order."""
    lines = grammar_of(plan(source, tool_choice=choice)).splitlines()
    assert [line.split(":")[0] for line in lines[1:4]] == ["arguments_1", "arguments_2", "arguments_3"]
    assert "boolean" in lines[3]


@pytest.mark.parametrize("source", [PLAIN, template("llama"), template("mistral"), TEMPLATE_NAMED])
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_grammar_bounds_how_many_calls_there_are(source: str, choice: str) -> None:
    """Parallel calls are at most so many, and without them there is one: a model that goes on and on must end."""
    several = grammar_of(plan(source, tool_choice=choice))
    one = grammar_of(plan(source, tool_choice=choice, parallel_tool_calls=False))
    is_single = source == template("llama") and choice == "required"
    counts = {f"{{0,{count}}}" for count in (MAX_PARALLEL_CALLS, MAX_PARALLEL_CALLS - 1)}
    assert any(count in several for count in counts) is not is_single
    assert not any(count in one for count in counts)
    assert "call)*" not in several + one


def test_each_output_has_its_own_parser() -> None:
    """Outputs are read apart."""
    made = plan(tools=msgspec.to_builtins([FunctionTool(function=SWITCH)]))
    assert made.parser is not None
    one, other = made.parser(), made.parser()
    one.push('<tool_call>{"name": "switch", "arguments": {"on"')
    assert other.push("hello") != []
    assert (one.num_calls, other.num_calls) == (1, 0)
