"""The API reference, made by Sphinx from the docstrings of all public names.

::

    sphinx-build -W --keep-going docs/reference FOLDER
"""

from __future__ import annotations

from typing import Any

import tensorplay

project = "TensorPlay"
release = tensorplay.__version__
html_title = f"TensorPlay {release}"
html_theme = "furo"
html_show_copyright = False  # LICENSE speaks for all of it

extensions = ["sphinx.ext.autodoc", "numpydoc"]
# A name in single backticks is a link where the reference has it, and plain otherwise.
default_role = "py:obj"

autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
numpydoc_show_class_members = False

# What a docstring must have, or the build fails: a summary, what is taken, what is returned.
numpydoc_validation_checks = {"GL07", "GL08", "PR01", "PR02", "RT01"}
# Methods say it in a sentence, and these classes are not made by those who use them: their
# attributes are documented instead.
numpydoc_validation_exclude = {
    r"\.[A-Z]\w*\.\w+$",
    r"\.(dtype|finfo|iinfo)(\.\w+)?$",
    r"\.autograd\.graph\.\w+$",
    r"\.cpp_jit\.cache\.\w+$",
    r"(Error|Warning|Crash|Report|Failure|Handle|Result|Explanation|Match|Tag|Type)$",
    r"\.(CompiledFunction|CustomOpDef|OverloadPacket|Node|Proxy|UnpackedDualTensor|WorkerInfo)$",
    r"\.report\.facts\.\w+$",
    r"\.cpp_jit\.(Build|Kernel|Module|Cubin|Diagnostic|Source|ToolchainCheck)$",
}


def _readable(
    _app: Any, _kind: str, _name: str, _object: Any, _options: Any, signature: str, returned: str
) -> tuple[str, str] | None:
    """Write ... for the default of a dataclass that is made anew, which is no Python as it stands.

    A signature that Sphinx cannot read appears with full paths and without links.
    """
    if not signature or "<factory>" not in signature:
        return None
    return signature.replace("<factory>", "..."), returned


def setup(app: Any) -> None:
    """Connect to Sphinx."""
    app.connect("autodoc-process-signature", _readable)
