"""What can answer questions: a model folder (transformers or vLLM), or an OpenAI-compatible server.

Importing this package loads neither torch nor transformers.
"""

from ram_studio.evals.answering.endpoint import EndpointEngine
from ram_studio.evals.answering.engine import ChatMode, Engine
from ram_studio.evals.answering.local import LocalEngine
from ram_studio.evals.answering.merged import MergedEngine
from ram_studio.evals.answering.vllm_engine import VllmEngine

__all__ = ["ChatMode", "EndpointEngine", "Engine", "LocalEngine", "MergedEngine", "VllmEngine"]
