"""What can be known about a C++ source before a compiler reads it.

A scan of words, includes and top-level functions: enough to choose the set of headers, to find a
misspelt export at once, and to name arguments. It never decides what is legal C++; where it is in
doubt it says nothing and the compiler answers.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tensorplay.utils.cpp_jit.toolchain import find_engine

#: A line that goes on in the next one; compilers pass over blanks behind the backslash.
_CONTINUED = r"\\[ \t\f\v\r]*\n"
_LITERAL_OR_COMMENT = re.compile(
    rf"//(?:{_CONTINUED}|[^\n])*"
    r"|/\*.*?(?:\*/|\Z)"
    r'|(?<![\w"])(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?(?:\)(?P=mark)"|\Z)'
    rf'|"(?:{_CONTINUED}|\\.|[^"\\\n])*"?'
    rf"|(?<![\w'])'(?:{_CONTINUED}|\\.|[^'\\\n])*'?",
    re.DOTALL,
)
_INCLUDE = re.compile(
    r'^[ \t]*#[ \t]*include[ \t]*(?:<(?P<angle>[^>\n]+)>|"(?P<quote>[^"\n]+)")', re.MULTILINE
)
#: Stands for the end of a line inside a comment or literal, or behind a backslash, which ends no
#: line of the preprocessor.
_INNER_END = "\x1f"
_JOINED = re.compile(rf"{_LITERAL_OR_COMMENT.pattern}|{_CONTINUED}", re.DOTALL)
_DIRECTIVE = re.compile(
    rf"^(?:[ \t\f\v{_INNER_END}]|\\(?=[ \t\f\v\r]*{_INNER_END}))*#[^\n]*", re.MULTILINE
)
#: ``<::`` is ``<`` and ``::``, unless another ``:`` or ``>`` follows.
_DIGRAPH = re.compile(r"<%|%>|<:(?!:(?![:>]))|:>|%:")
_MEANT = {"<%": " {", "%>": " }", "<:": " [", ":>": " ]", "%:": " #"}
_NOT_FUNCTION_NAMES = (
    "if for while switch catch return sizeof alignof decltype noexcept static_assert alignas "
    "typeid throw new delete requires __attribute__ defined operator"
)
_NOT_FUNCTIONS = frozenset(_NOT_FUNCTION_NAMES.split())
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
#: What opens a scope whose functions are those of the text.
_TRANSPARENT = re.compile(r"\b(?:namespace[\w:\s]*|extern\s*\"\s*\"\s*)$")
#: Qualifiers of kernels that look like a parameter list.
_CUDA_BOUNDS = re.compile(
    r"\b__(?:launch_bounds|cluster_dims|maxnreg|block_size|align)__\s*\([^()]*(?:\([^()]*\)[^()]*)*\)"
)

#: Names of ``tvm::ffi`` and of its macros that the light headers offer.
_LIGHT_NAMES = frozenset(
    {"Tensor", "TensorView", "Shape", "ShapeView", "IsContiguous", "GetDataSize"}
)
_COMPARISONS = ("", "_LT", "_GT", "_LE", "_GE", "_EQ", "_NE", "_NOTNULL")
_LIGHT_MACROS = frozenset(
    {
        "TVM_FFI_THROW",
        "TVM_FFI_DCHECK",
        "TVM_FFI_CHECK_SAFE_CALL",
        "TVM_FFI_DLL",
        "TVM_FFI_DLL_EXPORT",
        "TVM_FFI_DLL_EXPORT_TYPED_FUNC",
        "TVM_FFI_DLL_EXPORT_TYPED_FUNC_DOC",
        "TVM_FFI_VERSION_MAJOR",
        "TVM_FFI_VERSION_MINOR",
        "TVM_FFI_VERSION_PATCH",
        *(f"TVM_FFI_{kind}{op}" for kind in ("CHECK", "ICHECK") for op in _COMPARISONS),
    }
)
_LIGHT_INCLUDES = frozenset({"tvm/ffi/c_api.h", "tvm/ffi/extra/c_env_api.h", "dlpack/dlpack.h"})
_ENGINE_NAME = re.compile(r"\btvm\s*::\s*ffi\s*::\s*(\w+)")
_ENGINE_MACRO = re.compile(r"\bTVM_FFI_\w+")

#: Names by header. The engine's headers bring these in without being asked, and sources have come
#: to rely on it.
_NAMES_OF = {
    "algorithm": "min max sort fill fill_n copy copy_n clamp minmax find find_if any_of all_of "
    "none_of reverse transform nth_element stable_sort lower_bound upper_bound max_element "
    "min_element swap_ranges",
    "array": "array",
    "atomic": "atomic",
    "cstdio": "printf fprintf snprintf puts",
    "cstdlib": "malloc free calloc realloc getenv abort",
    "cstring": "memcpy memset memmove memcmp strlen strcmp",
    "exception": "exception terminate current_exception exception_ptr rethrow_exception",
    "functional": "function hash less greater plus",
    "iostream": "cout cerr endl",
    "limits": "numeric_limits",
    "map": "map",
    "memory": "unique_ptr shared_ptr make_unique make_shared",
    "mutex": "mutex lock_guard unique_lock",
    "numeric": "accumulate iota inner_product partial_sum",
    "optional": "optional nullopt",
    "sstream": "ostringstream stringstream istringstream",
    "stdexcept": "runtime_error logic_error invalid_argument out_of_range domain_error "
    "length_error range_error overflow_error",
    "string": "string to_string stod stoi stoll getline",
    "string_view": "string_view",
    "tuple": "tuple make_tuple tie get",
    "type_traits": "is_same_v is_same enable_if_t enable_if conditional_t decay_t is_integral_v "
    "is_floating_point_v remove_reference_t",
    "unordered_map": "unordered_map",
    "utility": "pair move forward swap exchange make_pair",
    "variant": "variant",
    "vector": "vector",
}
_HEADER_OF = {name: header for header, names in _NAMES_OF.items() for name in names.split()}
_GLOBAL_C = {n: h for n, h in _HEADER_OF.items() if h in {"cstring", "cstdio", "cstdlib"}}
_MATH_NAMES = (
    "exp exp2 expm1 log log2 log10 log1p sqrt cbrt pow hypot sin cos tan asin acos atan atan2 sinh "
    "cosh tanh asinh acosh atanh erf erfc tgamma lgamma ceil floor trunc round lround nearbyint "
    "rint fmod remainder fma fmax fmin fdim copysign nan isnan isinf isfinite signbit ldexp frexp "
    "modf fabs abs"
)
_MATH = frozenset(f"{name}{suffix}" for name in _MATH_NAMES.split() for suffix in ("", "f", "l"))
_LEAVES_POINTERS = re.compile(
    r"\b(?:thread|jthread|async|deleter|DLManagedTensor\w*|atexit|at_quick_exit|dlopen|signal"
    r"|sigaction|pthread_\w+|TVMFFIFunction\w+|TVMFFITensorFromDLPack\w*|TVMFFIEnv(?!TensorAlloc"
    r"\b|CheckSignals\b|GetStream\b)\w+|set_terminate)\b"
)
_STD_PREFIX = r"\bstd\s*::\s*"
_SPECIAL = (
    "assoc_laguerre|assoc_legendre|beta|comp_ellint_[123]|cyl_bessel_[ijk]|cyl_neumann|ellint_[123]"
    "|expint|hermite|laguerre|legendre|riemann_zeta|sph_bessel|sph_legendre|sph_neumann"
)
_LEFT_OUT = rf"(?:{_SPECIAL})[fl]?|sto(?:i|l|ll|ul|ull|f|d|ld)|to_wstring|wstring"
_C_HEADER_NAMES = (
    "assert complex ctype errno fenv float inttypes limits math omp setjmp signal stdarg stdbool "
    "stddef stdint stdio stdlib string time unistd immintrin emmintrin xmmintrin arm_neon"
)
_C_HEADERS = frozenset(f"{name}.h" for name in _C_HEADER_NAMES.split())
_STD_NAME = re.compile(r"\bstd\s*::\s*(\w+)")


_LACKS_STD = re.compile(
    r"is not a member of [`'‘]std|no member named .* in namespace [`'‘]std"
    r"|incomplete type [`'‘](?:class |struct )?std::"
    r"|[`'‘]std::[^'’]*['’] (?:was not|has not been|does not name)"
    r"|undefined template [`'‘]std::|is defined in header"
)


# In the words of g++, of clang, and of the front end of nvcc.
_NO_MEMBER = re.compile("has no member (?:named )?[`'‘\"](\\w+)")
_UNDECLARED = re.compile(
    "[`'‘\"](\\w+)['’\"] (?:was not declared|has not been declared|is undefined)"
)


@functools.lru_cache(maxsize=1)
def engine_words() -> frozenset[str]:
    """Return every identifier in the engine's headers."""
    folder = find_engine().include_paths[0] / "tvm" / "ffi"
    files = (*folder.glob("*.h"), *folder.glob("container/*.h"))
    return frozenset().union(*(names(file.read_text("utf-8", "replace")) for file in files))


@dataclass(frozen=True)
class Parameter:
    """One parameter of a C++ function; ``name`` is empty where the source gives none."""

    name: str
    type: str
    default: str | None = None

    @property
    def value(self) -> Any:
        """Return the default as a Python value; NotImplemented where it is an expression."""
        return _literal(self.default) if self.default is not None else NotImplemented


@dataclass(frozen=True)
class Function:
    """One top-level function definition; ``line`` counts from 1 in the text."""

    name: str
    result: str
    parameters: tuple[Parameter, ...]
    line: int


@dataclass(frozen=True)
class Scan:
    """What a source shows before compiling: code without comments, its includes and functions.

    In `flat` the preprocessor's lines are blank, too.
    """

    code: str
    flat: str
    includes: tuple[str, ...]
    local_includes: tuple[str, ...]
    functions: tuple[Function, ...]

    @property
    def stateful(self) -> bool:
        """Return whether the source may hold variables that outlive a call; true if in doubt."""
        flat = self.flat
        if "thread_local" in flat:
            return True
        for declaration, after in re.findall(r"\bstatic\b([^;{(=]*)([;{(=])", flat):
            if after != "(" and not re.search(r"\b(?:const|constexpr)\b", declaration):
                return True
        return _has_global(flat)

    @property
    def leaves_pointers(self) -> bool:
        """Return whether code of the library may be called after its last kernel is gone.

        Threads, exit handlers, signal handlers, registered functions and deleters of memory that
        the library itself hands out: with one of these it must stay loaded.
        """
        return _LEAVES_POINTERS.search(self.code) is not None


def _has_global(flat: str) -> bool:
    """Return whether a statement at namespace level may define a variable."""
    depth = 0
    statement = ""
    # A piece at a time: a text of megabytes, such as a comment, is one.
    for piece in re.split(r"([{};])", flat):
        if piece == "{":
            opens = re.search(r"\b(?:namespace[\w:\s]*|extern\s*\"\s*\"\s*)$", statement)
            depth += opens is None
            statement = statement if depth else ""
        elif piece == "}":
            depth = max(0, depth - 1)
            if depth == 0 and ")" in statement:
                statement = ""  # the end of a function body
        elif depth == 0 and piece == ";":
            words = statement.split()
            harmless = {"using", "typedef", "struct", "class", "enum", "union", "template"}
            harmless |= {"static_assert", "extern", "const", "constexpr", "friend", "static"}
            if words and words[0] not in harmless and ("=" in statement or "(" not in statement):
                return True
            statement = ""
        elif depth == 0:
            statement += piece
    return False


@functools.lru_cache(maxsize=64)
def scan(text: str) -> Scan:
    """Return what the text shows before a compiler reads it."""
    text = without_digraphs(text.replace("\r\n", "\n"))
    marked = _JOINED.sub(_marked, text)
    code = marked.replace(_INNER_END, "\n")
    angle: list[str] = []
    quote: list[str] = []
    for found in _INCLUDE.finditer(text):
        if code[found.start() : found.start(0) + found[0].index("#") + 1].strip():
            (angle if found["angle"] else quote).append(found["angle"] or found["quote"])
    flat = _DIRECTIVE.sub(lambda found: re.sub(rf"[^\n{_INNER_END}]", " ", found[0]), marked)
    flat = flat.replace(_INNER_END, "\n")
    return Scan(code, flat, tuple(angle), tuple(quote), _functions(flat))


def blank(text: str) -> str:
    """Return the text with comments and literals replaced by blanks, lines and length kept."""
    return _LITERAL_OR_COMMENT.sub(_blanks, text)


def _blanks(found: re.Match[str]) -> str:
    piece = found[0]
    body = re.sub(r"[^\n]", " ", piece)
    quote = piece[0]
    if quote in "\"'" and len(piece) > 1 and piece.endswith(quote):
        return quote + body[1:-1] + quote
    return body


def _marked(found: re.Match[str]) -> str:
    piece = found[0] if found[0].startswith("\\") else _blanks(found)
    return piece.replace("\n", _INNER_END)


def directives(text: str) -> tuple[str, ...]:
    """Return the preprocessor's lines, each as one line, with blanks for comments."""

    def marked(found: re.Match[str]) -> str:
        is_comment = found[0].startswith(("//", "/*"))
        return _marked(found) if is_comment else found[0].replace("\n", _INNER_END)

    lines = (found[0] for found in _DIRECTIVE.finditer(_JOINED.sub(marked, text)))
    joint = rf"\\[ \t\f\v\r]*{_INNER_END}|{_INNER_END}"
    return tuple(re.sub(joint, " ", line).strip() for line in lines)


def without_digraphs(text: str) -> str:
    """Return the text with braces, brackets and # for digraphs, of the same length."""
    if _DIGRAPH.search(text) is None:
        return text
    found = list(_DIGRAPH.finditer(blank(text)))
    for part in reversed(found):
        text = text[: part.start()] + _MEANT[part[0]] + text[part.end() :]
    return text


def blank_comments(text: str) -> str:
    """Return the text with comments replaced by blanks, lines and length kept."""

    def blanks(found: re.Match[str]) -> str:
        piece = found[0]
        return re.sub(r"[^\n]", " ", piece) if piece.startswith(("//", "/*")) else piece

    return _LITERAL_OR_COMMENT.sub(blanks, text)


def needs_full_headers(parts: Iterable[Scan]) -> str | None:
    """Return the first name that the light headers lack, or None if they seem enough."""
    for part in parts:
        for header in part.includes:
            if header.startswith("tvm/") and header not in _LIGHT_INCLUDES:
                return f"<{header}>"
        for name in _ENGINE_NAME.findall(part.code):
            if name not in _LIGHT_NAMES:
                return f"tvm::ffi::{name}"
        for name in _ENGINE_MACRO.findall(part.code):
            if name not in _LIGHT_MACROS:
                return str(name)
    return None


def implied_headers(parts: Iterable[Scan]) -> tuple[str, ...]:
    """Return standard headers whose names are used without being included, in order of use."""
    parts = tuple(parts)
    present = {name for part in parts for name in part.includes}
    wanted: dict[str, None] = {}
    for part in parts:
        for name in _STD_NAME.findall(part.code):
            if name in _MATH:
                wanted["cmath"] = None
            elif name in _HEADER_OF:
                wanted[_HEADER_OF[name]] = None
        called = set(re.findall(r"(?<![\w:.>])([a-z]\w*)\s*\(", part.code))
        if called & _MATH:
            wanted["cmath"] = None
        wanted.update(dict.fromkeys(_GLOBAL_C[name] for name in sorted(called & _GLOBAL_C.keys())))
    same = {"cmath": "math.h", "cstring": "string.h", "cstdio": "stdio.h", "cstdlib": "stdlib.h"}
    return tuple(h for h in wanted if h not in present and same.get(h) not in present)


def needs_whole_standard(parts: Iterable[Scan]) -> bool:
    """Return whether names may be used that `tensorplay/lean_standard.h` leaves out.

    Headers of the caller are not looked at, so any of them may.
    """
    for part in parts:
        if part.local_includes or any(map(_foreign, part.includes)):
            return True
        prefix = r"\b" if re.search(r"\busing\s+(?:namespace\s+)?std\b", part.code) else _STD_PREFIX
        if re.search(rf"{prefix}(?:{_LEFT_OUT})\b", part.code):
            return True
    return False


def _foreign(header: str) -> bool:
    """Return whether a header may be one of the caller's."""
    ours = header.startswith(("tensorplay/", "tvm/", "dlpack/"))
    return not ours and ("/" in header or "." in header) and header not in _C_HEADERS


def header_may_be_missing(message: str) -> bool:
    """Return whether an error of a light build could vanish with the engine's full headers."""
    if member := _NO_MEMBER.search(message):
        return "tvm::" in message and member[1] in engine_words()
    if re.search(r"tvm::|TVM_FFI|tensorplay::jit|\bffi\b", message) or _LACKS_STD.search(message):
        return True
    undeclared = _UNDECLARED.search(message)
    if undeclared is None:
        return False
    word = undeclared[1]
    return word in _MATH or word in _GLOBAL_C or (word[0].isupper() and word in engine_words())


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name nearest to a misspelt one, or None."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def _functions(flat: str) -> tuple[Function, ...]:
    """Return the functions defined at namespace level of a text without directives."""
    flat = _CUDA_BOUNDS.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), flat)
    found: list[Function] = []
    depth = 0  # braces that are neither a namespace nor extern "C"
    start = 0  # where the current declaration begins
    line, counted = 1, 0  # the line of the position up to which lines are counted
    opened: list[bool] = []
    for mark in re.finditer(r"[{};]", flat):
        position, character = mark.start(), mark[0]
        if character == "{":
            head = flat[start:position]
            transparent = _TRANSPARENT.search(head) is not None
            if depth == 0 and not transparent and (made := _function(head)):
                line += flat.count("\n", counted, start + made[1])
                counted = start + made[1]
                found.append(Function(*made[0], line))
            opened.append(transparent)
            depth += not transparent
        elif character == "}" and opened:
            depth -= not opened.pop()
        start = position + 1
    return tuple(found)


def _function(head: str) -> tuple[tuple[str, str, tuple[Parameter, ...]], int] | None:
    """Return what a declaration head before ``{`` defines as a function, and where its name is.

    The function is its name, its result and its parameters; None where there is none.
    """
    opening = _parameter_list(head)
    if opening is None:
        return None
    left, right = opening
    before = head[:left].rstrip()
    name = re.search(r"([A-Za-z_]\w*)$", before)
    if not name or name[1] in _NOT_FUNCTIONS or before.endswith("::" + name[1]):
        return None
    result = before[: name.start()].strip()
    if not result or re.search(r"\b(?:struct|class|union|enum|operator)\s*$", result):
        return None
    if re.match(r"template\b", result):
        return None
    result = re.sub(r"\[\[.*?\]\]|__attribute__\s*\(\(.*?\)\)", "", result, flags=re.DOTALL)
    result = re.sub(r"\b(?:static|inline|extern|constexpr|noexcept)\b|\"\s*\"", "", result).strip()
    parameters = tuple(
        parameter
        for text in split_at_commas(head[left + 1 : right])
        if (parameter := _parameter(text)) is not None
    )
    return (name[1], " ".join(result.split()), parameters), name.start()


def _parameter_list(head: str) -> tuple[int, int] | None:
    """Return the span of the first top-level parentheses that follow a name."""
    depth = angle = 0
    left = -1
    for position, character in enumerate(head):
        if character == "(":
            if depth == 0 and re.search(r"[A-Za-z_]\w*\s*$", head[:position]):
                word = re.search(r"([A-Za-z_]\w*)\s*$", head[:position])
                if word and word[1] not in _NOT_FUNCTIONS and angle == 0:
                    left = position
            depth += 1
        elif character == ")":
            depth -= 1
            if depth == 0 and left >= 0:
                return left, position
        elif depth == 0 and character in "<>":
            angle += 1 if character == "<" else -1
        elif depth == 0 and character == "=":
            return None
    return None


def split_at_commas(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts: list[str] = []
    depth = 0
    current = ""
    for character in text:
        depth += (character in "([{<") - (character in ")]}>")
        if character == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += character
    return [part.strip() for part in (*parts, current) if part.strip()]


def _parameter(text: str) -> Parameter | None:
    if text == "void":
        return None
    declaration, _, default = text.partition("=")
    declaration = re.sub(r"\[\[.*?\]\]", "", declaration).strip()
    found = re.search(r"^(?P<type>.*[\s*&>])(?P<name>[A-Za-z_]\w*)$", declaration, re.DOTALL)
    builtin = {"int", "long", "short", "char", "double", "float", "bool", "unsigned", "signed"}
    if (
        not found
        or found["name"] in builtin
        or found["type"].strip() in {"const", "struct", "enum"}
    ):
        return Parameter("", " ".join(declaration.split()), default.strip() or None)
    return Parameter(found["name"], " ".join(found["type"].split()), default.strip() or None)


def _literal(text: str) -> Any:
    """Return a C++ literal as a Python value, NotImplemented for anything else."""
    text = text.strip()
    if text in {"true", "false"}:
        return text == "true"
    if re.fullmatch(r"[+-]?\d+[uUlL]*", text):
        return int(text.rstrip("uUlL"))
    if re.fullmatch(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFlL]?", text):
        return float(text.rstrip("fFlL"))
    return NotImplemented


def names(code: str) -> frozenset[str]:
    """Return every identifier in blanked code."""
    return frozenset(_IDENTIFIER.findall(code))
