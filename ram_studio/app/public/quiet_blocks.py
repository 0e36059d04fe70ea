"""Failed events write one line into a shared server's log, instead of Gradio's traceback."""

from __future__ import annotations

import logging
from typing import Any

import gradio as gr

_LOG = logging.getLogger(__name__)


class QuietBlocks(gr.Blocks):
    """Blocks with one log line per failed event, as users could fill the log with tracebacks."""

    is_public = True
    """Whether the server is shared; a private one prints the traceback, for debugging."""

    async def process_api(self, block_fn: Any, *args: Any, **options: Any) -> dict[str, Any]:
        """Run an event.

        Raises: gradio.Error for values that do not fit its components, and for its own faults.
        """
        try:
            return await super().process_api(block_fn, *args, **options)
        except gr.Error as error:
            error.print_exception = False
            raise
        except Exception as error:
            event = getattr(block_fn, "name", block_fn)
            _LOG.error("Failed event %.60r: %.300r", event, error, exc_info=not self.is_public)
            raise gr.Error(
                "This failed. Reload the page and try again; the server's log says why.",
                print_exception=False,
            ) from error
