"""The worker protocol. The only part of the engine that the gateway imports; free of torch."""

from engine.protocol import engine_pb2 as pb
from engine.protocol import engine_pb2_grpc as rpc

__all__ = ["pb", "rpc"]
