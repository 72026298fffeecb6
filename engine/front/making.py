"""The outputs that a request asks for, made once it is taken."""

from tokenizers import Tokenizer

from engine.front.connection import Stream
from engine.front.detokenize import StopStrings, TextStream
from engine.front.live_request import num_generated, num_outputs
from engine.front.outputs import Embedding, Outputs, SeveralOutputs
from engine.front.ranking import Beams, SampledBest
from engine.model.folder import ModelFolder
from engine.protocol import pb


def outputs_of(stream: Stream, submit: pb.Submit, folder: ModelFolder, tokenizer: Tokenizer) -> Outputs:
    """Return the outputs of a request, with nothing generated yet.

    Args:
        stream: where they leave.
        submit: the request, which has been checked.
        folder: of the model, whose tokens end an output.
        tokenizer: the model's.
    """
    sampling, count = submit.sampling, num_generated(submit)
    end_tokens = frozenset(sampling.stop_token_ids)
    if not sampling.ignore_eos:
        end_tokens = end_tokens.union(folder.eos_token_ids)
    stops = StopStrings(sampling.stop)
    shown = frozenset(sampling.shown_token_ids)
    texts = [TextStream(tokenizer, stops, end_tokens, sampling.min_tokens, shown=shown) for _ in range(count)]
    if submit.embed:
        return Embedding(stream, texts)
    scored = sampling.HasField("logprobs")
    if submit.HasField("beam_search"):
        return Beams(stream, texts, count, scored=scored)
    if count > num_outputs(submit):
        return SampledBest(stream, texts, num_outputs(submit), scored=scored)
    return (SeveralOutputs if count > 1 else Outputs)(stream, texts, scored=scored)
