"""Every exception of omni_actors, in one tree, by whose fault it is.

::

    OmniError
    ├── UsageError                 the caller's: fix the call
    │   ├── ConfigError            a deploy file, an override or a spec
    │   ├── InvalidRequest         a prompt, sampling params, a modality
    │   └── RuntimeClosed          the runtime was already closed
    ├── Refused                    nobody's: try again later, or elsewhere
    │   ├── Overloaded             a full house
    │   └── ShuttingDown           admission is closed
    ├── RequestFailed              one request ended badly; the others go on
    │   ├── StageFailed            the replica that worked on it died
    │   ├── StageUnavailable       no replica could take it in time
    │   ├── EngineRejected         the engine answered with an error
    │   ├── TransformFailed        a pipeline's function between stages raised
    │   ├── EdgeTimeout            a stage did not answer its input in time
    │   ├── RequestTimeout         the request's own deadline passed
    │   └── SlowConsumer           its reader fell too far behind
    ├── StartupFailed              a stage did not become ready
    ├── EngineDead                 the verdict over one generation of a replica
    ├── ProtocolError              a peer broke its wire
    ├── ActorError                 the actor library
    │   ├── ActorDied              the actor ended before it answered
    │   ├── ActorNotReady          a child did not report readiness in time
    │   └── GaveUp                 a supervisor exhausted its restart intensity
    └── IllegalTransition          a bug of ours
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "ActorDied", "ActorError", "ActorNotReady", "ConfigError", "EdgeTimeout", "EngineDead", "EngineRejected", "GaveUp",
    "IllegalTransition", "InvalidRequest", "OmniError", "Overloaded", "ProtocolError", "Refused", "RequestFailed",
    "RequestTimeout", "RuntimeClosed", "ShuttingDown", "SlowConsumer", "StageFailed", "StageUnavailable",
    "StartupFailed", "TransformFailed", "UsageError",
]  # fmt: skip


class OmniError(Exception):
    """The root of every error that omni_actors raises.

    ``stage``, ``replica``, ``generation`` and ``request_id`` say where, as far as it is known.
    """

    def __init__(
        self,
        message: str,
        *,
        request_id: str | None = None,
        stage: str | None = None,
        replica: int | None = None,
        generation: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.request_id = request_id
        self.stage = stage
        self.replica = replica
        self.generation = generation

    def __reduce__(self) -> Any:
        """Copies keep every attribute, whatever the subclass's signature."""
        return (_rebuild, (type(self), self.args, self.__dict__.copy()))


def _rebuild(kind: type[OmniError], args: tuple[Any, ...], state: dict[str, Any]) -> OmniError:
    error = kind.__new__(kind)
    Exception.__init__(error, *args)
    error.__dict__.update(state)
    return error


class UsageError(OmniError):
    """Raised when the call itself is wrong."""


class ConfigError(UsageError):
    """Raised when a deploy file, an override or a spec is wrong.

    The message is one line: ``file:line: $.stages[0].modle: unknown key; did you mean 'model'?``
    """

    def __init__(
        self,
        problem: str,
        *,
        file: str | None = None,
        line: int | None = None,
        path: str | None = None,
        hint: str | None = None,
        stage: str | None = None,
    ) -> None:
        place = ":".join(str(part) for part in (file, line) if part is not None)
        message = ": ".join(part for part in (place, path, problem) if part)
        super().__init__(f"{message}; {hint}" if hint else message, stage=stage)
        self.problem, self.file, self.line, self.path, self.hint = problem, file, line, path, hint


class InvalidRequest(UsageError):
    """Raised when a prompt, its sampling params or a modality cannot be served by this pipeline."""


class RuntimeClosed(UsageError):
    """Raised when a closed runtime is used."""


class Refused(OmniError):
    """Raised when a valid request is not taken now."""


class Overloaded(Refused):
    """Raised within 10 ms when the house is full; ``in_flight`` and ``limit`` say by which measure."""

    def __init__(self, message: str, *, in_flight: int = 0, limit: int = 0, **where: Any) -> None:
        super().__init__(message, **where)
        self.in_flight, self.limit = in_flight, limit


class ShuttingDown(Refused):
    """Raised when a request comes after shutdown has begun."""


class RequestFailed(OmniError):
    """Raised when one request ended badly. ``terminal`` carries everything it had produced."""

    terminal: Any = None


class StageFailed(RequestFailed):
    """Raised when the replica that held this request's work died.

    ``pid``, ``exit_code`` (or ``signal``), ``verdict`` and ``stderr_tail`` say how.
    """

    def __init__(self, message: str, *, dead: EngineDead | None = None, **where: Any) -> None:
        super().__init__(message, **where)
        self.pid = dead.pid if dead else None
        self.exit_code = dead.exit_code if dead else None
        self.signal = dead.signal if dead else None
        self.verdict = dead.verdict if dead else None
        self.stderr_tail = dead.stderr_tail if dead else ()


class StageUnavailable(RequestFailed):
    """Raised when no replica of a stage could take the work within ``placement_s``, or all are down."""


class EngineRejected(RequestFailed):
    """Raised when an engine answered this request with an error and lives on."""


class TransformFailed(RequestFailed):
    """Raised when a pipeline's function between stages raised; ``function`` names it, ``__cause__`` is its error."""

    def __init__(self, message: str, *, function: str = "", **where: Any) -> None:
        super().__init__(message, **where)
        self.function = function


class EdgeTimeout(RequestFailed):
    """Raised when a stage gave no first output within ``edge_s`` of its input; ``edge`` is ``"thinker->talker"``."""

    def __init__(self, message: str, *, edge: str = "", **where: Any) -> None:
        super().__init__(message, **where)
        self.edge = edge


class RequestTimeout(RequestFailed):
    """Raised when the request's own ``timeout_s`` passed."""


class SlowConsumer(RequestFailed):
    """Raised when a request's unread outputs outgrew its stream's limit in bytes."""


class EngineDead(OmniError):
    """Raised when one generation of a replica is over: the one verdict of all detectors.

    ``verdict`` is ``"exit"``, ``"sentinel"``, ``"hang"``, ``"protocol"`` or ``"stop"``; at most one of
    ``exit_code`` and ``signal`` is set.
    """

    def __init__(
        self,
        message: str,
        *,
        verdict: str = "exit",
        pid: int | None = None,
        exit_code: int | None = None,
        signal: str | None = None,
        stderr_tail: tuple[str, ...] = (),
        **where: Any,
    ) -> None:
        super().__init__(message, **where)
        self.verdict, self.pid, self.exit_code, self.signal = verdict, pid, exit_code, signal
        self.stderr_tail = stderr_tail


class StartupFailed(EngineDead):
    """Raised when a stage did not become ready; its own last words are in the message and in ``stderr_tail``."""


class ProtocolError(OmniError):
    """Raised when a peer broke its wire: an unknown message, a wrong state, bytes that do not decode."""


class ActorError(OmniError):
    """The root of the actor library's errors."""


class ActorDied(ActorError):
    """Raised when an actor ended before it answered an ask."""


class ActorNotReady(ActorError):
    """Raised when a child did not call ``life.started`` within its ``start_s``, or ended before it."""


class GaveUp(ActorError):
    """Raised when a supervisor's restart intensity is exhausted."""


class IllegalTransition(OmniError):
    """Raised when a state table has no row for an event: a bug of ours, naming event, state and key."""
