"""Why a request is not taken, as its client is told."""

from engine.protocol import pb
from engine.request import RefusalCode

REFUSAL = {
    RefusalCode.INVALID: pb.REFUSAL_CODE_INVALID,
    RefusalCode.CONTEXT_TOO_LONG: pb.REFUSAL_CODE_CONTEXT_TOO_LONG,
    RefusalCode.KV_LIMIT: pb.REFUSAL_CODE_KV_LIMIT,
    RefusalCode.QUEUE_FULL: pb.REFUSAL_CODE_QUEUE_FULL,
    RefusalCode.NO_POLICY: pb.REFUSAL_CODE_NO_POLICY,
    RefusalCode.DRAINING: pb.REFUSAL_CODE_DRAINING,
    RefusalCode.UNAVAILABLE: pb.REFUSAL_CODE_UNAVAILABLE,
}


def refused(code: RefusalCode, message: str, field: str = "") -> pb.Refused:
    """Return a refusal; `field`: of the submit, where one is at fault."""
    return pb.Refused(code=REFUSAL[code], message=message, field=field)
