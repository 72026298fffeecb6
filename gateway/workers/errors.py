"""Errors of the engine client.

WorkerError
├── Refused            the worker did not take the request, or ended it for its own fault; `code` and `field` say why
├── WorkerUnavailable  no connection to a worker, or too much is waiting to be sent
├── GenerationFailed   the request had been sent and its worker or stream failed
├── SlowConsumer       the reader left too much text unread
└── Stopping           this process ends
"""


class WorkerError(Exception):
    """Base of what can go wrong between this process and a worker."""


class Refused(WorkerError):
    """The worker's own refusal. `code` is a `RefusalCode` of the protocol.

    It may come after what was generated, where only that shows that a request asks for too much.
    """

    def __init__(self, code: int, message: str, field: str) -> None:
        super().__init__(message)
        self.code = code
        self.field = field


class WorkerUnavailable(WorkerError):
    """Nothing was sent: the worker can't be reached."""


class GenerationFailed(WorkerError):
    """The request ended before its time."""


class SlowConsumer(WorkerError):
    """The reader doesn't keep up; its request was cancelled."""


class Stopping(WorkerError):
    """The process takes nothing new and ends what is left."""
