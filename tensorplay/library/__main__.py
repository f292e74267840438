"""``python -m tensorplay.library``: build, describe and seal libraries of operators."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tensorplay import library
from tensorplay.library.modules.artifact import parse, seal
from tensorplay.library.modules.loading import overview


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the process's exit status.

    Parameters
    ----------
    arguments
        Words of the command line; None for those of this process.
    """
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except (OSError, ValueError, RuntimeError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tensorplay.library",
        description="Build operators into one library file that loads without a compiler.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    build = commands.add_parser(
        "build",
        help="compile kernels and put their declarations into the library",
        description="Build a library of operators for tensorplay.library.load.",
    )
    build.add_argument(
        "files", nargs="+", metavar="FILE",
        help="declarations (.yaml or .yml, at most one) and C++ sources",
    )  # fmt: skip
    build.add_argument("-o", "--output", required=True, help="the library, such as libmyops.so")
    build.add_argument(
        "--flags", action="append", default=[], metavar="FLAGS",
        help="compiler and linker flags, in one word of the shell; may be repeated",
    )  # fmt: skip
    build.add_argument(
        "--contiguous", choices=("error", "copy"), default="error",
        help="what happens to strided inputs of a kernel that indexes flat (default: error)",
    )  # fmt: skip
    build.add_argument(
        "--allow-alias", action="store_true", help="outputs may share memory with inputs"
    )
    build.add_argument(
        "--debug", action="store_true", help="check every index of typed views, -O0 -g"
    )
    build.set_defaults(run=_build)
    show = commands.add_parser("show", help="print the operators of a library, not loading it")
    show.add_argument("file")
    show.set_defaults(run=_show)
    sealed = commands.add_parser(
        "seal", help="renew the checksum after a tool such as strip has changed a library"
    )
    sealed.add_argument("file")
    sealed.set_defaults(run=_seal)
    return parser


def _build(options: argparse.Namespace) -> None:
    declarations = [f for f in options.files if Path(f).suffix in (".yaml", ".yml")]
    if len(declarations) > 1:
        message = f"[build] expected one file of declarations, got {', '.join(declarations)}."
        raise ValueError(message)
    made = library.build_module(
        declarations[0] if declarations else None,
        [f for f in options.files if f not in declarations],
        output=options.output,
        flags=options.flags,
        contiguous=options.contiguous,
        allow_alias=options.allow_alias,
        debug=options.debug,
    )
    sys.stdout.write(f"{made}\n")


def _show(options: argparse.Namespace) -> None:
    file = Path(options.file)
    sys.stdout.write(overview(parse(file.read_bytes(), file)) + "\n")


def _seal(options: argparse.Namespace) -> None:
    file = Path(options.file)
    part = file.with_name(file.name + ".part")
    part.write_bytes(seal(file.read_bytes()))
    part.chmod(file.stat().st_mode)
    part.replace(file)


if __name__ == "__main__":
    sys.exit(main())
