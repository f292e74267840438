"""Pieces of script-free HTML that a report is made of.

What JupyterLab's sanitizer keeps, on one line: no script, no style sheet, no identifiers, literal
colours only. Everything that a person typed is escaped.
"""

from __future__ import annotations

import base64
import functools
import html
import struct
import zlib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["code_html", "details", "escaped", "heat_map", "one_line", "paragraph", "pre", "table"]

# Text of its own on a ground of its own, so that it can be read on light and dark pages. Pages of
# nbconvert give it the font of prose, in which a caret stands elsewhere.
_PRE = (
    "font-family:monospace;background:#f6f8fa;color:#1f2328;padding:6px 8px;"
    "border:1px solid #d0d7de;overflow-x:auto;"
    "line-height:1.4;white-space:pre-wrap;word-break:normal;overflow-wrap:break-word"
)
_FRAME = 0x8C  # grey, so that one sees where the white of a heat map ends
_TABLE = "border-collapse:collapse;margin:4px 0"
_CELL = "border:1px solid #8c959f;padding:2px 8px;text-align:left;vertical-align:top"


@functools.lru_cache(maxsize=256)  # a cell shows its sources again and again
def code_html(source: str, language: str) -> str:
    """Return coloured source in a block with a ground of its own."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name

    formatter = HtmlFormatter(noclasses=True, nowrap=True, style="friendly")
    coloured = highlight(source.rstrip("\n"), get_lexer_by_name(language), formatter)
    return f'<pre style="{_PRE}">{coloured.rstrip()}</pre>'


def escaped(text: object) -> str:
    """Return text without anything that HTML would read."""
    return html.escape(str(text), quote=True)


def one_line(text: str) -> str:
    """Return HTML on one line: some front ends do not rejoin a list of lines."""
    return text.replace("\r", "").replace("\n", "&#10;")


def pre(text: str) -> str:
    """Return text in a block with a ground of its own."""
    return f'<pre style="{_PRE}">{escaped(text)}</pre>'


def details(title: str, body: str, *, opened: bool = True) -> str:
    """Return a part that a reader opens and closes, without a script."""
    return (
        f"<details{' open' if opened else ''}><summary>{escaped(title)}</summary>{body}</details>"
    )


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with a caption and named columns."""
    head = "".join(f'<th scope="col" style="{_CELL}">{escaped(h)}</th>' for h in heads)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escaped(c)}</td>' for c in row) + "</tr>"
        for row in rows
    )
    return (
        f'<table style="{_TABLE}"><caption>{escaped(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )


def paragraph(text: object) -> str:
    """Return text as a paragraph."""
    return f"<p>{escaped(text)}</p>"


def heat_map(ratios: npt.NDArray[np.float64], text: str) -> str:
    """Return a picture of errors relative to what is allowed, with its description.

    Parameters
    ----------
    ratios
        Rows by columns. White is no error, blue up to what is allowed, red beyond it.
    text
        What a reader who does not see it is told.
    """
    height, width = ratios.shape
    scale = max(1, min(24, 240 // max(height, width)))
    pixels = np.repeat(np.repeat(_colours(ratios), scale, 0), scale, 1)
    pixels = np.pad(pixels, ((1, 1), (1, 1), (0, 0)), constant_values=_FRAME)
    return f'<img src="data:image/png;base64,{_png(pixels)}" alt="{escaped(text)}">'


def _colours(ratios: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """Return a colour per element, on a logarithmic scale from 1e-4 to 1e4 of what is allowed."""
    with np.errstate(all="ignore"):
        level = np.clip(np.log10(np.maximum(ratios, 1e-300)) / 4, -1, 1)
    level = np.where(np.isnan(ratios), 1, level)[..., None]
    white, blue = np.array([255, 255, 255]), np.array([70, 120, 200])
    orange, red = np.array([230, 130, 40]), np.array([150, 0, 20])
    inside = white + (level + 1) * (blue - white)
    colours = np.where(level <= 0, inside, orange + level * (red - orange))
    return np.asarray(colours, np.uint8)


def _png(pixels: npt.NDArray[np.uint8]) -> str:
    """Return an RGB picture in the format PNG (ISO/IEC 15948), in base64."""
    height, width, _ = pixels.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = b"".join(b"\0" + pixels[row].tobytes() for row in range(height))
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()
