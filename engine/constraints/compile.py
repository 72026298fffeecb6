"""From a grammar's text to a matcher that follows it.

Whoever sends a grammar decides how much work it is, so everything is bounded: its text, the work of reading it, what
one token may cost, and the memory of one matcher. What exceeds a bound is refused, or ends its own output.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLParserLimits, regex_to_lark

from engine.constraints.following import CompiledGrammar, reason
from engine.constraints.vocabulary import Vocabulary, is_panic
from engine.errors import GrammarError
from engine.request import Grammar, GrammarKind

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions  # of the stubs alone

_JSON_OPTIONS: "JsonCompileOptions" = {
    "whitespace_flexible": False,  # free white space would let a weak model write nothing else, to the last token
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": False,  # `oneOf` whose branches may overlap is refused rather than taken for `anyOf`
    "lenient": False,  # a keyword that is not enforced is refused rather than passed over
}


def open_compiler(
    tokenizer_json: bytes, vocab_size: int, eos_token_ids: Sequence[int]
) -> Callable[[Grammar], CompiledGrammar]:
    """Return what compiles grammars for a model; see `Vocabulary`.

    Raises:
        GrammarError: no grammar can be followed with this model.
    """
    vocabulary = Vocabulary(tokenizer_json, vocab_size, eos_token_ids)
    limits = _limits()

    def compile_grammar(grammar: Grammar) -> CompiledGrammar:
        """Compile a grammar: up to seconds, most of them without the interpreter's lock.

        Raises:
            GrammarError: it is none, or too much work; says why.
        """
        try:
            matcher = LLMatcher(vocabulary.tokenizer, _source(grammar), log_level=0, limits=limits)
            if matcher.is_error():
                raise GrammarError(reason(matcher))
            return CompiledGrammar(vocabulary, matcher)
        except BaseException as error:
            if not is_panic(error):
                raise
            raise GrammarError(f"the grammar cannot be prepared: {error}") from error

    return compile_grammar


def _source(grammar: Grammar) -> str:
    text = grammar.text
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            try:
                return LLMatcher.grammar_from_json_schema(text, overrides=_JSON_OPTIONS)
            except ValueError as error:
                raise GrammarError(f"the JSON schema is not a JSON object: {error}") from error
        case GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(regex_to_lark(text, "d"))  # `\d` is a digit from 0 to 9
        case GrammarKind.LARK:
            if text.lstrip().startswith("{"):  # the library would read a form of its own
                raise GrammarError("the grammar is not in the Lark form: it begins with a brace")
            return LLMatcher.grammar_from_lark(text)


def _limits() -> LLParserLimits:
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=30_000,
        step_max_items=50_000,
        max_items_in_row=20_000,  # what a union of large objects may need
        max_lexer_states=30_000,  # of about 700 bytes each, in each output that follows the grammar
        max_grammar_size=200_000,
        verbose_errors=False,
    )
