"""The build hook ``tensorplay`` of hatchling: a package's operators are built as it is built.

In ``pyproject.toml``, below ``[tool.hatch.build.hooks.tensorplay]``: ``library``, ``declarations``
and ``sources`` are paths from the project's folder; ``flags``, ``contiguous`` and ``allow_alias``
are those of `tensorplay.library.build_module`.
"""

from __future__ import annotations

import shutil
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.plugin import hookimpl

__all__ = ["SETTINGS", "OperatorsHook", "hatch_register_build_hook"]

SETTINGS = ("library", "declarations", "sources", "flags", "contiguous", "allow_alias")
_OF_HATCH = ("dependencies", "require-runtime-dependencies", "require-runtime-features",
             "enable-by-default")  # fmt: skip


class OperatorsHook(BuildHookInterface[Any]):
    """Builds the library of operators and puts it into the wheel, for any Python of the platform.

    An editable install has the library in the source tree, where Python finds the package.
    """

    PLUGIN_NAME = "tensorplay"
    _folder: str | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library before the wheel is put together.

        Raises
        ------
        TypeError, ValueError
            The settings, or a declaration that cannot become an operator.
        tensorplay.utils.cpp_jit.BuildError
            The compiler refuses a source.
        """
        settings = self._settings()
        if self.target_name != "wheel":
            return
        # Not above: hatchling loads every hook that is installed, in builds of any package.
        from tensorplay import library

        root = Path(self.root)
        place = settings["library"]
        target = root / place
        if version != "editable":
            self._folder = tempfile.mkdtemp(prefix="tensorplay-")
            target = Path(self._folder) / target.name
        declarations = settings.get("declarations")
        try:
            library.build_module(
                None if declarations is None else root / declarations,
                [root / source for source in settings["sources"]],
                output=target,
                flags=settings.get("flags", ()),
                contiguous=settings.get("contiguous", "error"),
                allow_alias=settings.get("allow_alias", False),
            )
        except BaseException:
            self._remove_folder()  # hatchling calls no `finalize` then
            raise
        if version != "editable":
            build_data["force_include"][str(target)] = self.build_config.get_distribution_path(
                place
            )
        build_data["pure_python"] = False
        system = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{system}"  # no part of it depends on the Python version

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was built for the wheel."""
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _settings(self) -> dict[str, Any]:
        where = "[tool.hatch.build.hooks.tensorplay]"
        settings = {k: v for k, v in self.config.items() if k not in _OF_HATCH}
        for key in settings:
            if key not in SETTINGS:
                message = f"{where} unknown key '{key}'. Keys: {', '.join(SETTINGS)}."
                raise ValueError(message)
        if not isinstance(settings.get("library"), str):
            message = f'{where} needs library = "src/mypkg/libmypkg.so", the file to make.'
            raise TypeError(message)
        sources = settings.setdefault("sources", [])
        if not isinstance(sources, list):
            message = f"{where} sources must be a list of paths, got {sources!r}."
            raise TypeError(message)
        return settings


@hookimpl
def hatch_register_build_hook() -> type[OperatorsHook]:
    """Tell hatchling of the hook."""
    return OperatorsHook
