"""START HERE: from a request's tools and a model to what is rendered, which grammar is asked for, and how it is read.

    plan = plan_of(request, model)         None: it has nothing to do with tools
    await model.chat_tokens(plan.turns(request.messages), plan.template_tools)
    plan.asked(request.asked_format())     the grammar, if one is needed, the request's own format included
    plan.shown_tokens                      special tokens that the worker is to send as text
    plan.parser                            makes the parser of one output; None: its text is content

A request that may call nothing has a plan too, where earlier calls stand in its conversation.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.protocol import pb
from gateway.api.errors import BadRequest
from gateway.api.formats import MAX_GRAMMAR_CHARACTERS, Asked
from gateway.api.functions import AllowedToolChoice, Function, FunctionTool, NamedTool, ToolChoice
from gateway.api.schemas import Message
from gateway.api.tools.detect import Manner, manner_of
from gateway.api.tools.grammar import FIRST_SCHEMA, Grammar
from gateway.api.tools.parser import Parser
from gateway.api.tools.turns import Turn, template_tools, turns_of
from gateway.workers.model import Model

# A weak model that must call something calls on and on. Who wants more than so many calls makes the rest in its next
# turn; a model that is not kept to a grammar makes as many as it likes.
MAX_PARALLEL_CALLS = 32

_PROBLEM = re.compile(r"at (\d+)\(\d+\): (.*?)\.?(?: 1 \| .*)?", re.DOTALL)  # and then the grammar's first lines


class Request(Protocol):
    """What a request says of tools."""

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation."""
        ...

    @property
    def tools(self) -> Sequence[FunctionTool] | None:
        """Those that it offers."""
        ...

    @property
    def tool_choice(self) -> ToolChoice | None:
        """Those that it wants called."""
        ...

    @property
    def parallel_tool_calls(self) -> bool | None:
        """Whether an output may have more than one call."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPlan:
    """How one request's tools are served by one model."""

    manner: Manner
    tools: Sequence[FunctionTool]  # of which the model is told
    functions: Sequence[Function]  # of them, those that it may call
    required: bool  # it must call one
    named: bool  # the request names the one to be called
    many: bool  # it may call several
    special: dict[str, int]  # markers of calls that are special tokens, with their ids

    @property
    def template_tools(self) -> list[dict[str, Any]] | None:
        """Tools for the model's template; None: there are none, or they are told in the turns."""
        return template_tools(self.tools) if self.tools and self.manner.native else None

    @property
    def shown_tokens(self) -> list[int]:
        """Special tokens that the worker is to send as text, in order."""
        return sorted(self.special.values()) if self.functions else []

    @property
    def parser(self) -> Callable[[], Parser] | None:
        """What makes the parser of one output; None: its text is content."""
        if not self.functions:
            return None
        syntax, names = self.manner.form.syntax, frozenset(function.name for function in self.functions)
        return lambda: Parser(syntax, names, only_calls=self.required)

    def turns(self, messages: Sequence[Message]) -> list[Turn]:
        """Return the conversation as the model's template takes it."""
        return turns_of(messages, self.manner, self.tools)

    def asked(self, answer: Asked | None) -> Asked | None:
        """Return the grammar that the worker is asked for; None: an output may be any text.

        Args:
            answer: what an output that calls nothing must be, as the request says it.

        Raises:
            BadRequest: the grammar would be too long, or `answer` is none that can stand beside calls.
        """
        if not self.functions:
            return answer
        if not self.required and answer is None and not self._is_bound:
            return None
        grammar = Grammar(self.special, exact=self.required)
        form = self.manner.form
        if self.required:
            start = form.calls(grammar, self.functions, most=self._most_calls)
        elif answer is None:
            start = form.mixed(grammar, self.functions, most=self._most_calls)
        else:
            start = f"{form.calls(grammar, self.functions, most=self._most_calls)} | {_answer(grammar, answer)}"
        text = grammar.text(start)
        if len(text.encode()) > MAX_GRAMMAR_CHARACTERS:
            raise BadRequest(
                f"`tools` make a grammar of {len(text)} characters, and it may have {MAX_GRAMMAR_CHARACTERS}: send "
                "fewer tools, or shorter schemas",
                param="tools",
            )
        return Asked("tools", pb.Grammar(kind=pb.Grammar.KIND_LARK, text=text))

    def explained(self, problem: str) -> tuple[str, str]:
        """Return the field of the client's request that a worker speaks of who refuses the grammar, and a message.

        Args:
            problem: as the worker says it; where it names a line of the grammar, that line has a function's schema.
        """
        found = _PROBLEM.fullmatch(problem)
        number = int(found[1]) - FIRST_SCHEMA if found is not None else -1
        if found is None or not 0 <= number < len(self.functions):
            return "tools", f"`tools`: {problem}"
        function = self.functions[number]
        index = next(index for index, tool in enumerate(self.tools) if tool.function is function)
        field = f"tools[{index}].function.parameters"
        fix = ", or leave out `strict`" if function.strict else ""
        return field, f"No output can be kept to `{field}`: {found[2]}. Change the schema{fix}."

    @property
    def _most_calls(self) -> int:
        return MAX_PARALLEL_CALLS if self.many else 1

    @property
    def _is_bound(self) -> bool:
        """Whether there are calls that a model might make, if nothing kept it from them, and must not."""
        fewer = len(self.functions) < len(self.tools)
        return fewer or not self.many or any(function.strict for function in self.functions)


def plan_of(request: Request, model: Model) -> ToolPlan | None:
    """Return how a request's tools, which have been checked, are served by `model`.

    None: it offers none, or none that may be called, and its conversation has no calls.
    """
    choice = request.tool_choice
    tools = () if choice == "none" else tuple(request.tools or ())
    if not tools and not any(message.tool_calls or message.role == "tool" for message in request.messages):
        return None
    manner = manner_of(model.chat_template)
    functions = _functions(tools, choice)
    named = isinstance(choice, NamedTool)
    many = request.parallel_tool_calls is not False and not named and not (manner.form.single and _must(choice))
    ids = {marker: model.vocabulary.special_id(marker) for marker in manner.form.markers} if functions else {}
    return ToolPlan(
        manner=manner,
        tools=tools,
        functions=functions,
        required=_must(choice),
        named=named,
        many=many,
        special={marker: token for marker, token in ids.items() if token is not None},
    )


def parser_of(request: Request, model: Model) -> Callable[[], Parser] | None:
    """Return what makes the parser of each of a request's outputs; None: their text is content."""
    plan = plan_of(request, model)
    return None if plan is None else plan.parser


def _functions(tools: Sequence[FunctionTool], choice: ToolChoice | None) -> list[Function]:
    functions = [tool.function for tool in tools]
    if isinstance(choice, NamedTool):
        allowed = {choice.function.name}
    elif isinstance(choice, AllowedToolChoice):
        allowed = {tool.function.name for tool in choice.allowed_tools.tools}
    else:
        return functions
    return [function for function in functions if function.name in allowed]


def _must(choice: ToolChoice | None) -> bool:
    if isinstance(choice, AllowedToolChoice):
        return choice.allowed_tools.mode == "required"
    return choice == "required" or isinstance(choice, NamedTool)


def _answer(grammar: Grammar, answer: Asked) -> str:
    if answer.grammar.kind != pb.Grammar.KIND_JSON_SCHEMA:
        raise BadRequest(
            f"`{answer.field}` can't be combined with `tools`, unless `tool_choice` is `none`: use `response_format`",
            param=answer.field,
        )
    return grammar.rule("answer", f"%json {answer.grammar.text}")
