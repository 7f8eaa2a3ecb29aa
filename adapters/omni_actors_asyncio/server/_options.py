"""What a server is asked to be, and as which arguments vLLM's own server gets that.

vLLM's parser reads what the user gave after ``--``; a default is changed only where the pipeline knows better. Options
of engines are refused there: they belong to the pipeline's stages, and would have no effect.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

from omni_actors import PipelineSpec, StageEvent, UsageError

from ._limits import HttpLimits

if TYPE_CHECKING:
    from argparse import Namespace


__all__ = ["ServeOptions", "is_loopback", "vllm_args"]

_ENGINE_OPTIONS_OF_THE_SERVER = frozenset(
    ("served_model_name", "enable_log_requests", "disable_log_stats", "logging_config")
)
"""Fields of vLLM's engine arguments that (also) its server reads."""
_OURS = frozenset(("host", "port", "model", "model_tag"))


@attrs.frozen(kw_only=True)
class ServeOptions:
    """``extra``: options of vLLM's own server, as on its command line. ``on_event``: every step of every replica, in
    the runtime's thread. ``say``: one line for the operator. ``log_level`` as uvicorn knows it.
    """

    spec: PipelineSpec
    host: str = "127.0.0.1"
    port: int = 8000
    extra: tuple[str, ...] = ()
    limits: HttpLimits = attrs.field(factory=HttpLimits)
    log_level: str = "warning"
    on_event: Callable[[StageEvent], None] | None = None
    say: Callable[[str], None] = print


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def vllm_args(options: ServeOptions) -> Namespace:
    """vLLM's arguments. Raises UsageError for an option that would have no effect, SystemExit(2) for an unknown one."""
    from vllm.entrypoints.launchers.cli_args import FrontendArgs, make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser(prog="omni-actors serve PIPELINE --"))
    args: Namespace = parser.parse_args(list(options.extra))
    defaults = parser.parse_args([])
    known = {field.name for field in dataclasses.fields(FrontendArgs)} | _ENGINE_OPTIONS_OF_THE_SERVER
    _refuse_others(args, defaults, known - _OURS)
    args.host, args.port, args.model = options.host, options.port, _model(options.spec)
    if not any(option.startswith("--uvicorn-log-level") for option in options.extra):
        args.uvicorn_log_level = options.log_level
    try:
        validate_parsed_serve_args(args)
    except Exception as error:  # vLLM's checks raise its own errors and Python's; all are about these options
        raise UsageError(f"vLLM's server refuses its options: {error}") from error
    return args


def _model(spec: PipelineSpec) -> str:
    """What clients call it, and where vLLM-Omni's server looks for a chat template."""
    return spec.stages[0].model if spec.stages[0].engine == "vllm-omni" else spec.name


def _refuse_others(args: Any, defaults: Any, known: frozenset[str] | set[str]) -> None:
    for name, default in vars(defaults).items():
        if getattr(args, name) == default or name in known:
            continue
        option = f"--{name.replace('_', '-')}"
        if name in ("host", "port"):
            raise UsageError(f"{option} belongs before the --, where omni-actors reads it")
        if name in _OURS:
            raise UsageError("the model is the pipeline's; --served-model-name names it for clients")
        raise UsageError(
            f"{option} is not the server's to set: give a stage's engine arguments in the pipeline or --set"
        )
