"""The browser app: four steps from agents to a checked merge.

``build`` and ``launch`` import Gradio only when they are called, and tell it before that not to
phone home.
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
    # Read by Gradio when it is imported, and by each component: its cache goes with the sessions.
    os.environ["GRADIO_TEMP_DIR"] = str(workspace.gradio_folder)
    from ram_studio.app.page import build_page

    if settings.is_public:
        from ram_studio.app.public.user import forget_owner_token

        forget_owner_token()
    return build_page(workspace)


def _warm_up(settings: Settings) -> None:
    """Compile and import while nobody, or only the first user, waits for it."""
    from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX
    from ram_studio.algorithm.kernels.warming import warm
    from ram_studio.app.public.machine import lower_priority
    from ram_studio.app.session.sets import DEFAULT_SET, TITLES, load_set, set_profile
    from ram_studio.app.tune.details_panel import details_of

    if settings.is_public:
        lower_priority()
    # First what a room presses at once: computed by thirty at a time, it took them 13 seconds.
    for set_name in TITLES:
        with contextlib.suppress(RamStudioError):  # told to whoever opens it
            set_profile(set_name)
    warm()
    # Plotly's first figure loads half of it.
    with contextlib.suppress(RamStudioError):
        details_of(load_set(DEFAULT_SET), DEFAULT_INDEX, False)
    if settings.is_public:
        # Else the first check of the day stops everybody's page for seconds.
        from ram_studio.evals.answering.load import load_model

        load_model(load_set(DEFAULT_SET).base, "cpu")
        # Some hundred thousand objects of libraries, which no collection needs to look at again.
        gc.collect()
        gc.freeze()


def leave_at_sigterm(workspace: Workspace) -> None:
    """Have SIGTERM end the jobs and the process, leaving no file. For the main thread."""

    # A container is stopped with SIGTERM: end the jobs, whose threads the interpreter would
    # wait for, and leave as after Ctrl-C, so that exit handlers run and all files go.
    def leave(*_: object) -> None:
        # A second one (a shell's, beside its child's own) would wait for the first for ever.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        workspace.close()
        sys.exit(0)

    signal.signal(signal.SIGTERM, leave)


def _check_address(settings: Settings) -> None:
    """Raise SettingsError where nothing can listen, before the page takes its seconds."""
    host, port = settings.host, settings.port
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        socket.create_server(address[:2], family=family).close()
    except (OSError, UnicodeError) as error:  # the latter for a name that no host can have
        # Python says the address once more.
        why = str(getattr(error, "strerror", None) or error).partition(" (while")[0]
        raise SettingsError(
            f"The app cannot listen on {host}, port {port}: {why}. Choose another --host or --port."
        ) from error


def launch(settings: Settings | None = None, **options: Any) -> Any:
    """Build and launch the app; return what ``gr.Blocks.launch`` returns.

    options: further arguments of ``gr.Blocks.launch`` (``prevent_thread_lock`` in tests).

    Raises: SettingsError: its port is taken, or its host is not this machine's.
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
    # Not before: Gradio silences warnings while it starts; imports in another thread undo that.
    threading.Thread(target=_warm_up, args=(settings,), name="warm", daemon=True).start()
    if not options.get("prevent_thread_lock"):
        app.block_thread()
    return launched
