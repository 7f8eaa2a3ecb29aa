"""vLLM-Omni's models on our runtime: the engine kind ``vllm-omni``, and pipelines of its registry and deploy files.

Its model code, workers, schedulers and connectors run as they are, in our engine processes; its entrypoint layer does
not run at all. vLLM-Omni is imported lazily: this package costs nothing until a stage of this kind is used.
"""

from __future__ import annotations

from ._companions import Companions
from ._handover import HandedOver, handed_over
from ._kind import OmniKind
from ._pipeline import model_spec, pipeline

__all__ = ["KIND", "Companions", "HandedOver", "handed_over", "model_spec", "pipeline"]

KIND = OmniKind()
