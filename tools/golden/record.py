"""Record one vLLM version: ``python tools/golden/record.py`` writes ``tests/golden/vllm-VERSION.json``.

Run it with that version first on the path. A wheel that is unpacked into a folder will do, if the installed packages
are near enough to import it: ``PYTHONPATH=FOLDER python tools/golden/record.py``. Its compiled parts are not needed.

What is recorded are facts, as data: EngineClient's members with their parameters, the wire's structs with their fields
in order, the engine's public methods, frames as this version encodes them, and what it reads in frames that we encode.
Tests hold the code against every version's file, whichever version is installed.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import warnings
from pathlib import Path
from typing import Any

import msgspec

from omni_actors.testing._core_wire import FakeAdd, FakeCoreCodec, FakeParams
from omni_actors.wire.vllm import Handshake

FOLDER = Path(__file__).parents[2] / "tests" / "golden"
STRUCTS = ("EngineCoreRequest", "EngineCoreOutput", "EngineCoreOutputs", "UtilityOutput", "EngineCoreReadyResponse")


def main() -> None:
    """Write the file of the version that is imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import vllm
        from vllm.engine.protocol import EngineClient
        from vllm.v1 import engine
        from vllm.v1.engine.core import EngineCoreProc
    found = {
        "version": vllm.__version__,
        "engine_client": members(EngineClient),
        "engine": members(EngineCoreProc),
        "structs": {name: fields(getattr(engine, name)) for name in STRUCTS},
        "finish_reasons": {str(reason): reason.value for reason in engine.FinishReason},
        "request_types": {kind.name: kind.value.hex() for kind in engine.EngineCoreRequestType},
        "processor": members_of_processors(),
        "says": frames(),
        "reads": reads(),
    }
    path = FOLDER / f"vllm-{vllm.__version__}.json"
    path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    print(path)


def members(kind: type[Any]) -> dict[str, Any]:
    """Every public member of a class, its own and inherited: what it is, and what it takes."""
    abstract: frozenset[str] = getattr(kind, "__abstractmethods__", frozenset())
    names = sorted(name for name in dir(kind) if not name.startswith("_"))
    found = {name: inspect.getattr_static(kind, name) for name in names}
    return {
        name: {"is": what(member), "abstract": name in abstract, "takes": parameters(member)}
        for name, member in found.items()
        if callable(member) or isinstance(member, property | staticmethod | classmethod)
    }


def what(member: Any) -> str:
    """One word."""
    if isinstance(member, property):
        return "property"
    if inspect.isasyncgenfunction(member):
        return "async generator"
    return "coroutine function" if inspect.iscoroutinefunction(member) else "function"


def parameters(member: Any) -> list[list[str | None]]:
    """Name, kind, default as written (null: none) of each, without ``self``."""
    if isinstance(member, property):
        return []
    function = getattr(member, "__func__", member)
    found = [p for p in inspect.signature(function).parameters.values() if p.name not in ("self", "cls")]
    return [[p.name, p.kind.name, None if p.default is p.empty else repr(p.default)] for p in found]


def members_of_processors() -> dict[str, Any]:
    """Of vLLM's classes beside the wire, what the codec and the meter call."""
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.engine.output_processor import OutputProcessor
    from vllm.v1.metrics.loggers import PrometheusStatLogger, StatLoggerManager
    from vllm.v1.metrics.stats import IterationStats, LoRARequestStates

    kinds = (InputProcessor, OutputProcessor, IterationStats, LoRARequestStates, StatLoggerManager)
    found: dict[str, Any] = {kind.__name__: members(kind) for kind in kinds}
    found["StatLoggerManager"]["__init__"] = {"takes": parameters(StatLoggerManager.__init__)}
    found["PrometheusStatLogger"] = sorted(name for name in dir(PrometheusStatLogger) if name.endswith("_cls"))
    return found


def fields(kind: type[Any]) -> list[str]:
    """In the order of the wire."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    return list(kind.__struct_fields__)


def frames() -> dict[str, list[str]]:
    """Messages of this version, as frames in hex."""
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.serial_utils import MsgpackEncoder

    said = {name: [bytes(frame).hex() for frame in MsgpackEncoder().encode(each)] for name, each in messages().items()}
    assert EngineCoreOutputs.__struct_fields__, "structs, not dicts"
    said["ready"] = [msgspec.msgpack.encode(ready_response()).hex()]
    return said


def messages() -> dict[str, Any]:
    """One of each kind that a test looks at."""
    import numpy as np
    import torch
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason, UtilityOutput
    from vllm.v1.metrics.stats import SchedulerStats
    from vllm.v1.outputs import LogprobsLists
    from vllm.v1.serial_utils import UtilityResult

    steps = [
        EngineCoreOutput("k-1", [9]),
        EngineCoreOutput("k-2", [7], finish_reason=FinishReason.STOP, stop_reason=7),
        EngineCoreOutput("k-3", [], finish_reason=FinishReason.ERROR, mm_cache_miss_hashes=["aa"]),
    ]
    stats = SchedulerStats(num_running_reqs=3, num_waiting_reqs=2, kv_cache_usage=0.5)
    logprobs = LogprobsLists(np.array([[1, 2]], np.int32), np.array([[-0.5, -1.5]], np.float32), np.array([1]))
    pooled = EngineCoreOutput("k-1", [], pooling_output=torch.tensor([0.5, 0.25]), finish_reason=FinishReason.STOP)
    return {
        "add": request(),
        "step": EngineCoreOutputs(outputs=steps, timestamp=3.5, scheduler_stats=stats),
        "logprobs": EngineCoreOutputs(outputs=[EngineCoreOutput("k-1", [1], new_logprobs=logprobs)], timestamp=3.5),
        "pooled": EngineCoreOutputs(outputs=[pooled], timestamp=3.5),
        "answer": EngineCoreOutputs(utility_output=UtilityOutput(5, result=UtilityResult([True, "x"])), timestamp=4.5),
        "refusal": EngineCoreOutputs(utility_output=UtilityOutput(6, "Server shutting down"), timestamp=4.5),
    }


def request() -> Any:
    """A plain one, as the front-end makes it."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine import EngineCoreRequest

    params = SamplingParams(
        temperature=0,
        max_tokens=4,
        stop=["w9"],
        stop_token_ids=[7],
        ignore_eos=True,
        output_kind=RequestOutputKind.DELTA,
    )
    params._all_stop_token_ids = {1, 7}
    return EngineCoreRequest(
        "k-1", [4, 5], None, params, None, 12.5, None, None, None, priority=3, external_req_id="k-1"
    )


def ready_response() -> Any:
    """What an engine says when it has loaded; every field that has no default is a 1 of its type."""
    from vllm.v1.engine import EngineCoreReadyResponse

    samples = {"int": 1, "str": "1", "bool": True}
    given = {
        field.name: samples.get(getattr(field.type, "__name__", ""))
        for field in dataclasses.fields(EngineCoreReadyResponse)
        if field.default is dataclasses.MISSING
    }
    return EngineCoreReadyResponse(**{**given, "max_model_len": 128, "num_gpu_blocks": 7, "block_size": 16})


def reads() -> dict[str, Any]:
    """What this version's own decoders make of our frames."""
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.utils import EngineHandshakeMetadata
    from vllm.v1.serial_utils import MsgpackDecoder

    params = FakeParams(max_tokens=4, stop=["x"], output_kind=1)
    ours = FakeAdd("k", [1], None, params, None, 1.0, None, None, None, priority=2, external_req_id="k")
    kind, frame = FakeCoreCodec().encode_add(ours)
    add = MsgpackDecoder(EngineCoreRequest).decode([frame])
    handshake = Handshake(input_address="ipc://i", output_address="ipc://o")
    hello = msgspec.msgpack.encode({"status": "HELLO", "local": True, "headless": False})
    reply = handshake.on_handshake([b"\0\0", hello])
    assert reply is not None
    init = msgspec.msgpack.decode(reply[1], type=EngineHandshakeMetadata)
    return {
        "add": {"frames": [kind.hex(), frame.hex()], "says": plain(add)},
        "init": {"frames": [reply[1].hex()], "says": plain(init.addresses)},
    }


def plain(value: Any) -> Any:
    """Of an object, what differs from nothing; as JSON has it."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, list | tuple | set):
        return [plain(each) for each in value]
    names = getattr(value, "__struct_fields__", None) or (
        fields(type(value)) if dataclasses.is_dataclass(value) else None
    )
    if names is None:
        return value
    return {name: plain(each) for name in names if not name.startswith("_") and (each := getattr(value, name))}


if __name__ == "__main__":
    main()
