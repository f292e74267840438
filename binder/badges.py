#!/usr/bin/env python3
"""Write a badge for each notebook into README.md, which opens it on mybinder.org.

::

    python3 binder/badges.py [ADDRESS] [--ref REF]

ADDRESS is where the repository can be cloned by anybody: on GitHub, GitLab or any git server. By
default it is that of the remote ``origin``, and REF is ``HEAD``, the default branch there.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[1]
_ROW = re.compile(
    r"^\| (?:\[!\[open on Binder\]\([^)]*\)\]\([^)]*\) )?(\[[^\]]*\]\(notebooks/(\w+\.ipynb)\))",
    re.MULTILINE,
)
_SSH = re.compile(r"^(?:ssh://)?git@([^:/]+)[:/](.+)$")


def repository(address: str, ref: str) -> str:
    """Return the address of a repository in mybinder.org's grammar.

    ::

        gh/OWNER/REPOSITORY/REF       GitHub
        gl/GROUP%2FPROJECT/REF        GitLab, groups in groups too
        git/ESCAPED ADDRESS/REF       any other, by https
    """
    ssh = _SSH.match(address)
    url = f"https://{ssh[1]}/{ssh[2]}" if ssh else address
    parts = re.fullmatch(r"https?://(?:[^/@]+@)?([^/]+)/(.+?)(?:\.git)?/?", url)
    if parts is None:
        sys.exit(
            f"binder/badges.py: {address} is no address that mybinder.org can clone. Write "
            "python3 binder/badges.py https://HOST/OWNER/REPOSITORY"
        )
    host, path = parts[1], parts[2]
    ref = quote(ref, safe="")
    if host == "github.com":
        return f"gh/{path}/{ref}"
    if host == "gitlab.com":
        return f"gl/{quote(path, safe='')}/{ref}"
    return f"git/{quote(f'https://{host}/{path}', safe='')}/{ref}"


def with_badges(readme: str, address: str, ref: str = "HEAD") -> str:
    """Return README's text with a badge in front of each notebook, in place of an earlier one."""
    where = f"https://mybinder.org/v2/{repository(address, ref)}"

    def row(found: re.Match[str]) -> str:
        path = quote(f"notebooks/{found[2]}", safe="")
        image = "![open on Binder](https://mybinder.org/badge_logo.svg)"
        return f"| [{image}]({where}?labpath={path}) {found[1]}"

    text, count = _ROW.subn(row, readme)
    if count == 0:
        sys.exit("binder/badges.py: README.md has no table of notebooks")
    return text


def main(arguments: list[str]) -> None:
    """Write the badges."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("address", nargs="?")
    parser.add_argument("--ref", default="HEAD")
    given = parser.parse_args(arguments)
    address = given.address
    if address is None:
        asked = ["git", "remote", "get-url", "origin"]
        done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(
                "binder/badges.py: there is no remote origin. Write "
                "python3 binder/badges.py https://HOST/OWNER/REPOSITORY"
            )
        address = done.stdout.strip()
    readme = ROOT / "README.md"
    readme.write_text(with_badges(readme.read_text("utf-8"), address, given.ref), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
