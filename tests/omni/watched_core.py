"""``omni_actors.vllm_omni.stage_core`` with one more method for the host to call: what the engine holds, counted.

Run by path in its place. ``held`` walks over the objects of vLLM and vLLM-Omni below the scheduler, and below the
runner in the worker, and answers how many entries each of their collections has, and which of them know a name.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from omni_actors.engines.core_proc import end_worker_quickly, host
from omni_actors.vllm_omni import stage_core

COLLECTIONS = (dict, list, set, deque)
THEIRS = ("vllm", "omni_actors", "transformers_modules")
MAX_DEPTH = 7


def held(engine, names=(), tidy=False):
    """Of the scheduler and of the worker: sizes by path, and the paths that hold one of ``names``; its memory too.

    ``tidy``: what is free is given back to the system before memory is measured.
    """
    if tidy:
        give_back()
    ours = look(engine.scheduler, names)
    (worker,) = engine.model_executor.collective_rpc(look_in_worker, args=(list(names), tidy))
    running, waiting = engine.scheduler.get_request_counts()
    pool = engine.scheduler.kv_cache_manager.block_pool
    return {
        "running": running,
        "waiting": waiting,
        "requests": len(engine.scheduler.requests),
        "free_blocks": pool.get_num_free_blocks(),
        "blocks": pool.num_gpu_blocks,
        "engine": ours,
        "worker": worker,
    }


def look_in_worker(worker, names, tidy=False):
    if tidy:
        give_back()
    return look(getattr(worker, "worker", worker).model_runner, names)


def look(root, names):
    sizes, named = {}, []
    for path, found in _collections(root, type(root).__name__, 0, set()):
        if found:
            sizes[path] = len(found)
        if names and any(_knows(each, names) for each in _entries(found)):
            named.append(path)
    return {"sizes": sizes, "named": named, "rss_kb": _rss_kb()}


def _collections(thing, path, depth, seen):
    if id(thing) in seen or depth > MAX_DEPTH:
        return
    seen.add(id(thing))
    if isinstance(thing, COLLECTIONS):
        yield path, thing
        for number, inner in enumerate(_inner(thing)):
            yield from _collections(inner, f"{path}[{number}]", depth + 1, seen)
    elif type(thing).__module__.startswith(THEIRS):
        for name, inner in list(getattr(thing, "__dict__", {}).items()):
            if not name.startswith(("_parameters", "_buffers")):
                yield from _collections(inner, f"{path}.{name}", depth + 1, seen)


def _inner(collection):
    """What is in a small one may hold more. In one of a thousand things nothing but things is looked for."""
    entries = list(collection.values()) if isinstance(collection, dict) else list(collection)
    return entries[:64] if len(entries) <= 256 else ()


def _entries(collection):
    return list(collection) + (list(collection.values()) if isinstance(collection, dict) else [])


def _knows(entry, names):
    if isinstance(entry, str):
        return any(name in entry for name in names)
    if isinstance(entry, tuple | list | Mapping):
        words = entry.values() if isinstance(entry, Mapping) else entry
        return any(isinstance(word, str) and _knows(word, names) for word in words)
    return any(_knows(str(getattr(entry, each, "")), names) for each in ("request_id", "req_id"))


def give_back():
    """To the system: what nobody refers to, and the pages that the allocator keeps for others to come."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def _rss_kb():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def run(config, executor, payload):
    from vllm_omni.engine.stage_engine_core_proc import StageEngineCoreProc

    StageEngineCoreProc.held = held
    stage_core._run(config, executor, payload)


if __name__ == "__main__":
    sys.path.remove(os.path.dirname(os.path.abspath(__file__)))  # "prompts" is a name that others have too
    host(stage_core._configure, run)
elif __name__ == "__mp_main__":  # a spawned worker imports its parent's main module under this name
    end_worker_quickly()
