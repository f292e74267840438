"""The extension of JupyterLab that comes with the package, for installs that do not copy it.

A wheel puts it where JupyterLab looks. After an editable install, or where no compiler was at hand,
``python -m tpkernel.lab link`` puts a link there, and ``python -m tpkernel.lab unlink`` removes it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["EXTENSION", "link", "main", "unlink"]

#: The folder that JupyterLab serves.
EXTENSION = Path(__file__).parent / "labextension"


def _place(prefix: str | None) -> Path:
    return Path(prefix or sys.prefix) / "share" / "jupyter" / "labextensions" / "tpkernel"


def link(prefix: str | None = None) -> Path:
    """Put a link to the extension where JupyterLab looks.

    Parameters
    ----------
    prefix
        Folder with ``share/jupyter``; None for that of this Python.

    Returns
    -------
    Path
        The link.

    Raises
    ------
    FileExistsError
        Something that is no link stands there, such as the copy of a wheel.
    """
    place = _place(prefix)
    if place.is_symlink():
        place.unlink()
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(EXTENSION, target_is_directory=True)
    return place


def unlink(prefix: str | None = None) -> bool:
    """Remove the link; returns whether there was one."""
    place = _place(prefix)
    if not place.is_symlink():
        return False
    place.unlink()
    return True


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tpkernel.lab", description=__doc__)
    parser.add_argument("command", choices=("link", "unlink"))
    parser.add_argument("--prefix", help="folder with share/jupyter (default: this Python's)")
    options = parser.parse_args(arguments)
    if options.command == "link":
        try:
            said = f"linked {link(options.prefix)}"
        except FileExistsError as problem:
            parser.error(f"{problem.filename2 or problem.filename} is there already, and no link")
    else:
        said = "removed" if unlink(options.prefix) else "there was no link"
    sys.stdout.write(f"{said}\n")


if __name__ == "__main__":
    main()
