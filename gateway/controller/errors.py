"""Errors of the controller.

ControllerError
├── LeadershipLost   the lock's connection broke: another controller may be active by now
└── Superseded       a worker has applied a push that this controller has not sent
"""


class ControllerError(Exception):
    """Base of the controller's errors."""


class LeadershipLost(ControllerError):  # a state, not a mistake
    """The lock's connection broke: another controller may be active by now."""


class Superseded(ControllerError):
    """A worker has applied a push that this controller has not sent."""
