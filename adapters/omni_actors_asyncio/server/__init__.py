"""``omni-actors serve``: vLLM's own OpenAI server on AsyncOmni, with the omni routes in front of it.

``serve(options)`` runs it until a signal; ``routes(door)`` are the omni routes alone, for who embeds them.
"""

from __future__ import annotations

from ._door import Door
from ._limits import HttpLimits
from ._options import ServeOptions
from ._routes import routes
from ._run import serve

__all__ = ["Door", "HttpLimits", "ServeOptions", "routes", "serve"]
