"""The browser app: four steps from agents to a checked merge.

``build`` and ``launch`` import Gradio only when they are called, after turning off its requests
home.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

from ram_studio.app.settings import Settings
from ram_studio.errors import RamStudioError, SettingsError

if TYPE_CHECKING:
    import gradio as gr

    from ram_studio.app.session.workspace import Workspace

__all__ = ["Settings", "build", "launch"]


def _silence_gradio() -> None:
    # Read by Gradio when it is imported: no version check, no usage statistics.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")


def build(settings: Settings | None = None) -> gr.Blocks:
    """Return the app, not yet launched."""
    _silence_gradio()
    settings = settings or Settings()
    from ram_studio.app.session.workspace import Workspace

    workspace = Workspace(settings)
    # Read by Gradio when it is imported, and by each component: its cache is deleted with sessions.
    os.environ["GRADIO_TEMP_DIR"] = str(workspace.gradio_folder)
    from ram_studio.app.page import build_page

    if settings.is_public:
        from ram_studio.app.public.user import forget_owner_token

        forget_owner_token()
    return build_page(workspace)


def _warm_up(settings: Settings) -> None:
    """Compile and import before users, or at most the first one, wait for it."""
    from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX
    from ram_studio.algorithm.kernels.warming import warm
    from ram_studio.app.public.machine import lower_priority
    from ram_studio.app.session.sets import DEFAULT_SET, TITLES, load_set, set_profile
    from ram_studio.app.tune.details_panel import details_of

    if settings.is_public:
        lower_priority()
    # First what a class opens at the same time: thirty concurrent users waited 13 seconds for it.
    for set_name in TITLES:
        with contextlib.suppress(RamStudioError):  # reported to users who open it
            set_profile(set_name)
    warm()
    # Plotly's first figure loads half of the library.
    with contextlib.suppress(RamStudioError):
        details_of(load_set(DEFAULT_SET), DEFAULT_INDEX, False)
    if settings.is_public:
        # Otherwise the first check blocks all pages for seconds.
        from ram_studio.evals.answering.load import load_model

        load_model(load_set(DEFAULT_SET).base, "cpu")
        # Some hundred thousand objects of libraries, which garbage collection can skip.
        gc.collect()
        gc.freeze()


def leave_at_sigterm(workspace: Workspace) -> None:
    """Make SIGTERM end the jobs and the process, leaving no file. For the main thread."""

    # A container is stopped with SIGTERM: end the jobs, whose threads the interpreter would wait
    # for, and exit as after Ctrl-C, so that exit handlers run and delete all files.
    def leave(*_: object) -> None:
        # A second signal (sent by a shell to its child too) would wait for the first forever.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        workspace.close()
        sys.exit(0)

    signal.signal(signal.SIGTERM, leave)


def _check_address(settings: Settings) -> None:
    """Raise SettingsError for an unusable address, before building the page takes seconds."""
    host, port = settings.host, settings.port
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        socket.create_server(address[:2], family=family).close()
    except (OSError, UnicodeError) as error:  # UnicodeError for an invalid host name
        # Python's message repeats the address.
        why = str(getattr(error, "strerror", None) or error).partition(" (while")[0]
        raise SettingsError(
            f"The app cannot listen on {host}, port {port}: {why}. Choose another --host or --port."
        ) from error


def launch(settings: Settings | None = None, **options: Any) -> Any:
    """Build and launch the app; return what ``gr.Blocks.launch`` returns.

    options: further arguments of ``gr.Blocks.launch`` (``prevent_thread_lock`` in tests).

    Raises: SettingsError: the port is in use, or the host is not this machine's.
    """
    settings = settings or Settings()
    _check_address(settings)
    app = build(settings)
    from ram_studio.app.shell import launch_options

    workspace = app.ram_workspace
    if threading.current_thread() is threading.main_thread():
        leave_at_sigterm(workspace)
    workspace.open()
    given = {**launch_options(app, settings), **options, "prevent_thread_lock": True}
    launched = app.launch(**given)
    # Only now: Gradio silences warnings while it starts, and imports in another thread undo that.
    threading.Thread(target=_warm_up, args=(settings,), name="warm", daemon=True).start()
    if not options.get("prevent_thread_lock"):
        app.block_thread()
    return launched
