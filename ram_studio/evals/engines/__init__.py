"""What can answer questions: a model folder through transformers, or an OpenAI-compatible server.

Importing this package loads neither torch nor transformers.
"""

from ram_studio.evals.engines.endpoint import EndpointEngine
from ram_studio.evals.engines.engine import ChatMode, Engine
from ram_studio.evals.engines.local import LocalEngine

__all__ = ["ChatMode", "EndpointEngine", "Engine", "LocalEngine"]
