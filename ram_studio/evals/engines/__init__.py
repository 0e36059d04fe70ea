"""What can answer questions: a model folder (transformers or vLLM), or an OpenAI-compatible server.

Importing this package loads neither torch nor transformers.
"""

from ram_studio.evals.engines.endpoint import EndpointEngine
from ram_studio.evals.engines.engine import ChatMode, Engine
from ram_studio.evals.engines.local import LocalEngine
from ram_studio.evals.engines.merged import MergedEngine
from ram_studio.evals.engines.vllm_engine import VllmEngine

__all__ = ["ChatMode", "EndpointEngine", "Engine", "LocalEngine", "MergedEngine", "VllmEngine"]
