"""The worker token, checked on every call before anything of it is read."""

import hmac
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NoReturn

import grpc

if TYPE_CHECKING:  # generic in the stubs alone
    Handler = grpc.RpcMethodHandler[Any, Any]
    Interceptor = grpc.aio.ServerInterceptor[Any, Any]
else:
    Interceptor = grpc.aio.ServerInterceptor


class TokenInterceptor(Interceptor):
    """Answers UNAUTHENTICATED to a call without `authorization: Bearer <token>`; compares in constant time."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["Handler"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler":
        """Pass an authentic call on."""
        handler = await continuation(handler_call_details)
        if handler is None or self._authentic(handler_call_details.invocation_metadata):
            return handler
        return _refusing(handler)

    def _authentic(self, metadata: Any) -> bool:
        given = [value for name, value in metadata or () if name == "authorization"]
        value = given[0] if len(given) == 1 else ""
        return hmac.compare_digest(value.encode() if isinstance(value, str) else value, self._expected)


def _refusing(handler: "Handler") -> "Handler":
    """Return a handler of the same arity that reads nothing and refuses."""

    async def refuse(_request: object, context: "grpc.aio.ServicerContext[Any, Any]") -> NoReturn:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the worker token is missing or wrong")

    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    return make(
        refuse, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer
    )
