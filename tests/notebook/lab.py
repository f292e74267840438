"""A real JupyterLab in a real headless Chromium, driven from pytest.

::

    with LabServer() as server, LabBrowser(server) as browser:
        with browser.open(notebook) as tab:
            tab.run_all()
            tab.output(0).get_by_role("button", name="Run").click()
            expect(tab.output(0)).to_contain_text("done")
            assert tab.problems == []

JupyterLab is started with ``expose_app_in_browser``, so that commands and the state of the kernel
are asked from the application itself instead of guessed from the page. A view is painted some time
after the kernel has answered: tests wait with Playwright's ``expect`` and never sleep.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import nbformat
from nbformat import NotebookNode
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Error as PlaywrightError,
    Locator,
    Page,
    Playwright,
    Route,
    WebSocket,
    expect,
    sync_playwright,
)

EXTENSION = Path(__file__).resolve().parents[2] / "magics" / "tpkernel" / "labextension"

START_SECONDS = 90
STOP_SECONDS = 20
ANSWER_SECONDS = 120
ACTION_MILLISECONDS = 60_000
EXPECT_MILLISECONDS = 20_000  # Playwright's own 5 s are short on two busy cores

CHROMIUM_FLAGS = (
    "--no-sandbox",  # root, containers
    "--disable-dev-shm-usage",  # a container's /dev/shm is small
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--no-first-run",
    "--no-proxy-server",
)

USER_SETTINGS: dict[str, dict[str, object]] = {
    # The news toast covers the lower right corner of the page and asks a server on the Internet.
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    # Cells outside the window are otherwise left out of the page, or are there without text.
    "notebook-extension/tracker": {"windowingMode": "none"},
    # A save in the middle of a test would race with the test's own.
    "docmanager-extension/plugin": {"autosave": False},
}

# JupyterLab reports its own requests, to the debugger or for a subshell, that were open when a
# kernel was shut down or restarted.
HARMLESS_PAGE_ERRORS = ("Canceled future for",)

# Notebook 7 reads the settings of its shortcuts while they are still loading, with or without
# extensions (github.com/jupyter/notebook/issues/7862), and asks for its own commands before the
# plugin that has them is there. Harmless only if no code but its own ran.
NOTEBOOK_RACES = re.compile(
    r"Cannot read properties of undefined \(reading 'schema'\)"
    r"|Command 'filebrowser:open-path' not registered\."
)


class BrowserMissingError(RuntimeError):
    """No Chromium was found."""


class LabServer:
    """``jupyter lab`` on a free port of the loopback interface, with folders of its own.

    Parameters
    ----------
    settings
        User settings by plugin, such as ``{"notebook-extension/tracker": {...}}``, added to those
        that every test needs.
    environment
        Variables added to the server's, and so to its kernels'.
    python
        The Python whose JupyterLab this is; None for that of ``LABTEST_PYTHON``, or else this one.

    Attributes
    ----------
    url
        Where the server answers, with a slash at the end; set by ``start``.
    root
        The folder whose notebooks it serves.
    log
        The file with all that it printed.
    """

    def __init__(
        self,
        settings: dict[str, dict[str, object]] | None = None,
        environment: dict[str, str] | None = None,
        python: str | None = None,
    ) -> None:
        self.url = ""
        self._python = python or os.environ.get("LABTEST_PYTHON") or sys.executable
        self._settings = {**USER_SETTINGS, **(settings or {})}
        self._environment = environment or {}
        self._folder = Path(tempfile.mkdtemp(prefix="tensorplay-lab-"))
        self.root = self._folder / "notebooks"
        self.log = self._folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LabServer:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and return when it answers."""
        folders = {
            "HOME": self._folder / "home",
            "IPYTHONDIR": self._folder / "ipython",
            "JUPYTER_CONFIG_DIR": self._folder / "config",
            "JUPYTER_DATA_DIR": self._folder / "data",
            "JUPYTER_RUNTIME_DIR": self._folder / "runtime",
            "JUPYTERLAB_SETTINGS_DIR": self._folder / "settings",
            "JUPYTERLAB_WORKSPACES_DIR": self._folder / "workspaces",
        }
        for folder in (self.root, *folders.values()):
            folder.mkdir()
        extension = folders["JUPYTER_DATA_DIR"] / "labextensions" / "tpkernel"
        extension.parent.mkdir()
        extension.symlink_to(EXTENSION, target_is_directory=True)
        self.write_settings({})
        command = [
            *(self._python, "-m", "jupyterlab"),
            *("--allow-root", "--no-browser", "--ip=127.0.0.1", f"--port={_free_port()}"),
            f"--ServerApp.root_dir={self.root}",
            "--IdentityProvider.token=",  # loopback only; a token would lead every page to a login
            "--LabApp.expose_app_in_browser=True",
            "--JupyterNotebookApp.expose_app_in_browser=True",
            "--LabApp.extension_manager=readonly",
            "--LabApp.news_url=None",
        ]
        environment = {
            **os.environ,
            **{name: str(folder) for name, folder in folders.items()},
            **self._environment,
        }
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 (one C call, no Python lock is taken)
            )
        info = folders["JUPYTER_RUNTIME_DIR"] / f"jpserver-{self._process.pid}.json"
        self.url = self._wait_until_it_answers(info)

    def write_settings(self, more: dict[str, dict[str, object]]) -> None:
        """Write the user settings, with more of them; pages that are loaded later have these."""
        for plugin, values in {**self._settings, **more}.items():
            name = f"@jupyterlab/{plugin}.jupyterlab-settings"
            file = self._folder / "settings" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(values))

    def stop(self) -> None:
        """Stop the server with its kernels and remove its folders."""
        if self._process is not None:
            # Kernels live in sessions of their own: only the server's clean end reaches them.
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait(STOP_SECONDS)
            self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait_until_it_answers(self, info: Path) -> str:
        """Return the server's address, read from the file where it says which port it took."""
        assert self._process is not None
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + START_SECONDS
        reason: object = None
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                url = str(json.loads(info.read_text())["url"])
                direct.open(url + "api/status", timeout=5).close()
            except (OSError, ValueError) as error:  # not written yet, half written, not listening
                reason = error
                time.sleep(0.1)
            else:
                return url
        tail = self.log.read_text(errors="replace")[-4000:]
        raise RuntimeError(f"jupyter lab did not start ({reason}):\n{tail}")


class LabBrowser:
    """One Chromium page on a server; notebooks are opened in it one after the other.

    Opening a further notebook in the page takes a second, a fresh page five. After a failure the
    next notebook gets a fresh page, so that one test cannot spoil another.

    If the variable ``LABTEST_ARTIFACTS`` names a folder, each failure leaves a screenshot and the
    server's log there.
    """

    def __init__(self, server: LabServer) -> None:
        self._server = server
        self._playwright: Playwright | None = None
        self._chromium: Browser | None = None
        self._context: BrowserContext | None = None
        self._problems: list[str] = []
        self._opened = 0

    def __enter__(self) -> LabBrowser:
        expect.set_options(timeout=EXPECT_MILLISECONDS)
        self._playwright = sync_playwright().start()
        try:
            self._chromium = self._playwright.chromium.launch(
                executable_path=find_chromium(), args=list(CHROMIUM_FLAGS)
            )
        except BaseException:
            self._playwright.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._chromium is not None
        assert self._playwright is not None
        self._chromium.close()
        self._playwright.stop()

    @contextlib.contextmanager
    def open(
        self,
        notebook: NotebookNode,
        *,
        fresh: bool = False,
        theme: str = "JupyterLab Light",
        application: Literal["lab", "notebook"] = "lab",
        settings: dict[str, dict[str, object]] | None = None,
    ) -> Iterator[NotebookTab]:
        """Open a copy of a notebook, with a kernel of its own that is idle and answers.

        Parameters
        ----------
        notebook
            What to open; written under a new name, so that no earlier file is in the way.
        fresh
            Take a new browser profile.
        theme
            The name of the theme as JupyterLab shows it.
        application
            JupyterLab, or Jupyter Notebook 7 on the same server, in a page of its own.
        settings
            User settings by plugin for this notebook alone, which then has a page of its own.
        """
        notebook = nbformat.from_dict(notebook)
        # Without a kernelspec JupyterLab asks for a kernel in a dialog.
        notebook.metadata.setdefault(
            "kernelspec", {"name": "python3", "display_name": "Python 3", "language": "python"}
        )
        self._opened += 1
        name = f"test-{self._opened}.ipynb"
        nbformat.write(notebook, self._server.root / name)
        is_lab = application == "lab"
        is_alone = settings is not None or not is_lab
        if fresh or is_alone:
            self._forget_page()
        self._server.write_settings(settings or {})
        try:
            # /doc shows the one document without side bars; ?reset drops a restored layout.
            address = f"doc/tree/{name}?reset" if is_lab else f"notebooks/{name}"
            tab = self._show(name, address, theme)
            yield tab
            tab.close()
        except BaseException:
            self._keep_artifacts(name)
            self._forget_page()
            raise
        finally:
            self._server.write_settings({})
        if is_alone:
            self._forget_page()

    @contextlib.contextmanager
    def static_page(self, file: Path) -> Iterator[Page]:
        """Show a saved page as a reader without scripts and without network sees it."""
        assert self._chromium is not None
        context = self._chromium.new_context(java_script_enabled=False, offline=True)
        try:
            page = context.new_page()
            page.goto(file.as_uri())
            yield page
        finally:
            context.close()

    @contextlib.contextmanager
    def bare_page(self, scheme: Literal["dark", "light"] = "light") -> Iterator[Page]:
        """Give a page without JupyterLab and without network, for other hosts of widgets."""
        assert self._chromium is not None
        context = self._chromium.new_context(color_scheme=scheme, offline=True)
        context.set_default_timeout(ACTION_MILLISECONDS)
        try:
            yield context.new_page()
        finally:
            context.close()

    def _show(self, name: str, address: str, theme: str) -> NotebookTab:
        if self._context is None:
            page = self._new_page()
            self._problems.clear()
            page.goto(self._server.url + address)
        else:
            page = self._context.pages[0]
            self._problems.clear()
            page.evaluate(JS_OPEN, name)
        page.wait_for_function(JS_IS_READY, arg=name)
        ask(page, JS_WAKE_KERNEL)
        ask(page, JS_SET_THEME, theme)  # the server remembers the last test's
        page.locator(f"body[data-jp-theme-name='{theme}']").wait_for(state="attached")
        page.locator("#jupyterlab-splash").wait_for(state="detached")  # it covers the page
        return NotebookTab(page, self._server.root / name, self._problems)

    def _new_page(self) -> Page:
        assert self._chromium is not None
        self._context = self._chromium.new_context(viewport={"width": 1280, "height": 1000})
        self._context.set_default_timeout(ACTION_MILLISECONDS)
        self._context.grant_permissions(
            ["clipboard-read", "clipboard-write"], origin=self._server.url.rstrip("/")
        )
        page = self._context.new_page()
        page.on("pageerror", self._note_page_error)
        page.on("console", self._note_console)
        page.on("websocket", self._note_socket)
        page.route(lambda url: not self._is_own(url), self._refuse)
        return page

    def _is_own(self, url: str) -> bool:
        return url.startswith((self._server.url, "data:", "blob:"))

    def _refuse(self, route: Route) -> None:
        self._problems.append(f"external request: {route.request.url}")
        route.abort()

    def _note_page_error(self, error: PlaywrightError) -> None:
        if error.message.removeprefix("Error: ").startswith(HARMLESS_PAGE_ERRORS):
            return
        files = re.findall(r"https?://\S+", error.stack or "")
        core = f"{self._server.url}static/notebook/"
        own = files and all(f.startswith(core) for f in files)
        if own and NOTEBOOK_RACES.fullmatch(error.message):
            return
        self._problems.append(f"page error: {error.message}")

    def _note_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self._problems.append(f"console error: {message.text}")

    def _note_socket(self, socket: WebSocket) -> None:
        if not socket.url.startswith(self._server.url.replace("http", "ws", 1)):
            self._problems.append(f"external socket: {socket.url}")

    def _forget_page(self) -> None:
        if self._context is not None:
            self._context.close()
            self._context = None

    def _keep_artifacts(self, name: str) -> None:
        folder = artifacts_folder()
        if folder is None or self._context is None:
            return
        shutil.copy(self._server.log, folder / f"{name}.server.log")
        # The page may be what failed: then the error that the caller raises is the one to see.
        with contextlib.suppress(PlaywrightError):
            self._context.pages[0].screenshot(path=folder / f"{name}.png")


class NotebookTab:
    """An open notebook.

    Attributes
    ----------
    page
        Playwright's page, for what this class does not offer.
    file
        Where the notebook lies.
    problems
        Errors of the page and its console, and requests to any other host, since it was opened.
    """

    def __init__(self, page: Page, file: Path, problems: list[str]) -> None:
        self.page = page
        self.file = file
        self.problems = problems

    def command(self, name: str, **arguments: object) -> object:
        """Run a command of JupyterLab; return its result if it is a truth value, else None."""
        return ask(self.page, JS_COMMAND, [name, arguments])

    def run_all(self) -> None:
        """Run every cell; return when the kernel has answered the last one.

        Raises
        ------
        AssertionError
            If a cell raised, with what it wrote.
        """
        if self.command("notebook:run-all-cells") is not True:
            written = self.panel.locator("[data-mime-type*=error], [data-mime-type*=stderr]")
            raise AssertionError("a cell failed:\n" + "\n".join(written.all_inner_texts()))

    def run_cell(self, index: int, *, wait: bool = True) -> None:
        """Run one cell; return when the kernel has answered, whatever it answered."""
        self.page.evaluate(JS_ACTIVATE, index)
        if wait:
            self.command("notebook:run-cell")
        else:
            self.page.evaluate(JS_RUN_ACTIVE)

    def restart(self) -> None:
        """Restart the kernel; outputs stay."""
        ask(self.page, JS_RESTART)

    def save(self) -> NotebookNode:
        """Save the notebook as a person does, and return what its file holds."""
        self.command("docmanager:save")
        return nbformat.read(self.file, as_version=4)

    def reopen(self) -> None:
        """Shut the kernel down, close the notebook, and open its file with another kernel."""
        self.close()
        self.page.evaluate(JS_OPEN, self.file.name)
        self.page.wait_for_function(JS_IS_READY, arg=self.file.name)
        ask(self.page, JS_WAKE_KERNEL)

    def set_source(self, index: int, text: str) -> None:
        """Replace the text of a cell, as typing would."""
        self.page.evaluate(JS_SET_SOURCE, [index, text])

    def wait_until_idle(self) -> None:
        """Return when the kernel has done all that was asked before."""
        ask(self.page, JS_BARRIER)

    def screenshot(self, name: str) -> None:
        """Keep a picture of the page as ``name.png`` among the artifacts, if those are kept."""
        folder = artifacts_folder()
        if folder is not None:
            self.page.screenshot(path=folder / f"{name}.png")

    def close(self) -> None:
        """Shut the kernel down and close the notebook without saving."""
        ask(self.page, JS_CLOSE)

    @property
    def panel(self) -> Locator:
        """The notebook itself, without menus and bars."""
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")

    def cell(self, index: int) -> Locator:
        """Return a cell by its position from the top, text cells included."""
        return self.panel.locator(".jp-Cell").nth(index)

    def output(self, index: int) -> Locator:
        """Return what a cell displays."""
        return self.cell(index).locator(".jp-Cell-outputArea")


def find_chromium() -> str:
    """Return the browser's path: ``$CHROMIUM``, or the first known name on ``PATH``.

    Raises
    ------
    BrowserMissingError
        If there is none.
    """
    named = os.environ.get("CHROMIUM")
    names = [named] if named else ["chromium", "chromium-browser", "google-chrome"]
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return path
    raise BrowserMissingError(
        f"no browser: looked for {', '.join(names)}. Install Debian's package chromium,"
        " set CHROMIUM to the path of one, or leave these tests out: -m 'not browser'."
    )


def artifacts_folder() -> Path | None:
    """Return the folder that ``LABTEST_ARTIFACTS`` names, made if need be, or None."""
    name = os.environ.get("LABTEST_ARTIFACTS")
    if not name:
        return None
    folder = Path(name)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def ask(page: Page, function: str, argument: object = None) -> Any:
    """Call a JavaScript function in the page, with a limit on the time that its promise takes.

    Playwright's ``evaluate`` has none: one message that the kernel loses would hang the test run.
    """
    return page.evaluate(
        """([argument, milliseconds]) => {
          const late = new Promise((_, reject) => setTimeout(
            () => reject(new Error(`no answer within ${milliseconds} ms`)), milliseconds));
          return Promise.race([(FUNCTION)(argument), late]);
        }""".replace("FUNCTION", function),
        [argument, ANSWER_SECONDS * 1000],
    )


def _free_port() -> int:
    # Port 0 would do, but some versions of the server then name 0 in the file with their address.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end_with_parent() -> None:
    """In the server's process: ask Linux for SIGTERM when pytest ends, even if pytest is killed."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


# What runs in the page. Each is one function of one argument.

_PANEL = "window.jupyterapp?.shell.currentWidget"

JS_COMMAND = """async ([name, args]) => {
  const result = await window.jupyterapp.commands.execute(name, args);
  return typeof result === 'boolean' ? result : null;
}"""

# Not awaited here: it ends when the document is shown, which JS_IS_READY waits for.
JS_OPEN = "path => { window.jupyterapp.commands.execute('docmanager:open', {path}); }"

# Synchronous on purpose: wait_for_function takes any promise for true.
JS_IS_READY = f"""path => {{
  const panel = {_PANEL};
  const session = panel?.sessionContext;
  return Boolean(session?.isReady) && panel.context.isReady && panel.context.path === path
    && session.session?.kernel?.status === 'idle';
}}"""

# Some releases of ipykernel 7 rarely start a kernel that says idle and answers nothing.
JS_WAKE_KERNEL = f"""async () => {{
  const session = {_PANEL}.sessionContext;
  const after = ms => new Promise(resolve => setTimeout(() => resolve(false), ms));
  for (let tries = 0; tries < 4; tries++) {{
    const reply = session.session.kernel.requestExecute({{code: '', silent: true}}).done;
    if (await Promise.race([reply.then(() => true, () => false), after(10000)])) return;
    await Promise.race([session.restartKernel(), after(10000)]);
  }}
  throw new Error('the kernel does not answer, though restarted');
}}"""

JS_SET_THEME = """async theme => {
  if (document.body.dataset.jpThemeName !== theme)
    await window.jupyterapp.commands.execute('apputils:change-theme', {theme});
}"""

JS_ACTIVATE = f"index => {{ const panel = {_PANEL}; panel.content.activeCellIndex = index; }}"

JS_RUN_ACTIVE = "() => { window.jupyterapp.commands.execute('notebook:run-cell'); }"

JS_RESTART = f"async () => {{ await {_PANEL}.sessionContext.restartKernel(); }}"

JS_SET_SOURCE = f"""([index, text]) => {{
  {_PANEL}.content.widgets[index].model.sharedModel.setSource(text);
}}"""

JS_BARRIER = f"""async () => {{
  await {_PANEL}.sessionContext.session.kernel.requestExecute({{code: '', silent: true}}).done;
}}"""

JS_CLOSE = f"""async () => {{
  const panel = {_PANEL};
  await panel.sessionContext.shutdown();
  panel.context.model.dirty = false;
  panel.dispose();
}}"""
