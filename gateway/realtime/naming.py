"""Let an error of the chat surface name the field as the client of a socket wrote it. Pure."""

from gateway.api.errors import ApiError


def rename(error: ApiError, param: str) -> None:
    """Let `error` name the field `param`, in its message too."""
    if error.param:
        error.message = error.message.replace(f"`{error.param}`", f"`{param}`")
    error.param = param


def under(error: ApiError, path: str) -> None:
    """Put the field that `error` names under `path`; where it names none, it is about what stands there."""
    rename(error, f"{path}.{error.param}" if error.param else path)


def of_response(error: ApiError, source: str, root: str = "response") -> None:
    """Give a field of a chat request the name that it has in a `response.create`, or in another object `root`.

    Args:
        error: names a field of a chat request, or none.
        source: what holds the messages: `input`, `messages` or `conversation`.
        root: the object that holds the field.
    """
    param = error.param
    if param is None:
        return
    if param == "messages" or param.startswith("messages["):
        rename(error, source if source == "conversation" else f"{root}.{source}")
        return
    if param == "max_completion_tokens":
        param = "max_output_tokens"
    elif param.startswith(("tools[", "tool_choice.")):
        param = param.replace(".function", "", 1)  # which is not nested here
    if error.param and param != error.param:
        error.message = error.message.replace(f"`{error.param}`", f"`{param}`")
        error.param = param
    under(error, root)
