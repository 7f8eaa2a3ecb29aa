"""The engine kind ``diffusion``: a diffusers pipeline, or any class of one's own, in a DiffusionEngine child."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_actors._errors import InvalidRequest, UsageError
from omni_actors.config._hints import did_you_mean
from omni_actors.engines.diffusion._options import Options
from omni_actors.stages.omni._frontend import OmniFrontend
from omni_actors.stages.omni._kind import OmniKind, wrong

if TYPE_CHECKING:
    from omni_actors.config.specs import StageSpec

__all__ = ["DiffusionFrontend", "DiffusionKind"]

_DOTTED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+\Z")
_HOST = "omni_actors.engines.diffusion:DiffusersModel"
_INDEX = "model_index.json"
_HOW_TO_CHOOSE = "give a folder or an id of the hub: --model PATH on the command line, model: in a deploy file"


class DiffusionKind(OmniKind):
    """Runs ``spec.model``: a folder in diffusers' layout, an id of the hub, or the dotted path of a class with the
    interface of ``engines.generation.Generator``.

    ``engine_args`` of a pipeline are the fields of ``engines.diffusion.Options``, and ``max_batch``.
    """

    module = "omni_actors.engines.diffusion"

    def check(self, spec: StageSpec) -> None:
        """Raises ConfigError for a model that is not there or not a pipeline, and for unknown or impossible options."""
        if not spec.model:
            raise wrong(spec, "it has no model", _HOW_TO_CHOOSE)
        if _DOTTED.match(spec.model):
            super().check(spec)
            return
        self.check_max_batch(spec)
        self.encoded(spec, dict(spec.engine_args))
        _check_installed(spec)
        _check_options(spec)
        _check_model(spec)

    def frontend(self, spec: StageSpec) -> DiffusionFrontend:
        """The stage's front-end; cheap for this kind."""
        return DiffusionFrontend(spec)

    def payload(self, spec: StageSpec) -> dict[str, Any]:
        """What the child reads from its stdin, beside ``env``, ``address`` and ``identity``."""
        made = super().payload(spec)
        if not _DOTTED.match(spec.model):
            made |= {"class": _HOST, "args": {**made["args"], "model": _place(spec.model)}}
        return made


class DiffusionFrontend(OmniFrontend):
    """As every front-end of this wire; ``num_images_per_prompt`` is another word for ``n``. Each sample is a lease."""

    def _merged(self, params: Any) -> dict[str, Any]:
        merged = super()._merged(params)
        images = merged.pop("num_images_per_prompt", None)
        if images is not None and merged.setdefault("n", images) != images:
            raise InvalidRequest(
                f"stage {self._stage}: n is {merged['n']} and num_images_per_prompt is {images}; they mean the same",
                stage=self._stage,
            )
        return merged


def _check_installed(spec: StageSpec) -> None:
    missing = [name for name in ("torch", "diffusers", "greenlet") if importlib.util.find_spec(name) is None]
    if missing and spec.python is None:
        raise wrong(spec, f"{', '.join(missing)} cannot be imported", "pip install 'omni-actors[diffusion]'")


def _check_options(spec: StageSpec) -> None:
    known = {*Options.names(), "max_batch"} - {"model"}
    for name in spec.engine_args:
        if name not in known:
            raise wrong(spec, f"engine_args: {name!r} is not known", did_you_mean(name, known))
    try:
        Options(model=spec.model, **{name: value for name, value in spec.engine_args.items() if name != "max_batch"})
    except UsageError as error:
        raise wrong(spec, f"engine_args: {error.message}") from None


def _check_model(spec: StageSpec) -> None:
    """Ids of the hub are found out by the child: looking them up takes the network."""
    folder = Path(_place(spec.model))
    if not folder.is_dir():
        if _HUB_ID.match(spec.model):
            return
        hint = "give a folder, or an id of the hub: org/name"
        raise wrong(spec, f"model {spec.model!r}: there is no such folder", hint)
    try:
        index = json.loads((folder / _INDEX).read_text())
    except FileNotFoundError:
        hint = "a pipeline is saved with save_pretrained; a single model is not one"
        raise wrong(spec, f"model {spec.model!r} has no {_INDEX}: it is no diffusers pipeline", hint) from None
    except ValueError as error:
        raise wrong(spec, f"model {spec.model!r}: {_INDEX} is broken: {error}") from None
    _check_index(spec, folder, index)


def _check_index(spec: StageSpec, folder: Path, index: Any) -> None:
    kind = index.get("_class_name") if isinstance(index, dict) else None
    if kind is None:
        raise wrong(spec, f"model {spec.model!r}: {_INDEX} names no pipeline class")
    if isinstance(kind, list) and not spec.engine_args.get("trust_remote_code"):
        hint = "read it, then set engine_args: {trust_remote_code: true}"
        raise wrong(
            spec, f"model {spec.model!r} comes with code of its own ({kind[0]}.py); it is not run unasked", hint
        )
    parts = [name for name, value in index.items() if isinstance(value, list) and name[0] != "_" and value[0]]
    if absent := [name for name in parts if not (folder / name).exists()]:
        raise wrong(spec, f"model {spec.model!r} is incomplete: there is no {', '.join(absent)}")


def _place(model: str) -> str:
    """A folder's name as the child will find it, whatever its working directory."""
    path = Path(model).expanduser()
    return str(path.absolute()) if path.is_dir() or model.startswith(("/", "./", "../", "~")) else model
