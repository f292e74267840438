"""What is added where the compiler's words do not tell what to write, or where it says nothing."""

from __future__ import annotations

import platform
import re

import pytest

import tensorplay as tp
import tpkernel
from tensorplay.utils import cpp_jit
from tpkernel.cells.hints import _TARGET_OF, compiler_hint

LOOP = """\
template <typename T>
void twice(tp::In<T> x, tp::Out<T> out) {
  PRAGMA
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i] + x[i];
}
"""
STORE = "_mm512_storeu_ps(out.data() + 16 * i, _mm512_loadu_ps(x.data() + 16 * i));"
INTRINSIC = f"""\
#include <immintrin.h>
BEFORE void k(tp::In<float> x, tp::Out<float> out) {{
  for (int64_t i = 0; i < x.numel() / 16; ++i)
    {STORE}
  for (int64_t i = x.numel() / 16 * 16; i < x.numel(); ++i) out[i] = x[i];
}}
"""
only_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="intrinsics of x86-64")


def ignored(pragma: str, flags: str = "") -> list[str]:
    report = tpkernel.build(LOOP.replace("PRAGMA", pragma), flags=flags, checks=False)
    return [f.message for f in report.findings if f.code == "ignored_pragma"]


def fails(text: str, flags: str = "") -> cpp_jit.BuildError:
    with pytest.raises(cpp_jit.BuildError) as caught:
        tpkernel.build(text, flags=flags, checks=False)
    return caught.value


@pytest.mark.parametrize(
    "pragma", ["#pragma omp parallel for", "#  pragma omp for", '_Pragma("omp parallel for")']
)
def test_a_pragma_of_openmp_without_its_flag_is_a_warning(pragma):
    (message,) = ignored(pragma)
    assert "at line 3 is ignored" in message
    assert "one thread" in message
    assert "%%tpkernel -- -fopenmp'" in message
    assert "tp::parallel_for(0, n, [&](int64_t i) { … })" in message
    assert ignored(pragma, "-fopenmp") == []


def test_a_simd_pragma_asks_for_the_flag_of_its_own():
    (message,) = ignored("#pragma omp simd")
    assert "-fopenmp-simd" in message
    assert "parallel_for" not in message
    assert ignored("#pragma omp simd", "-fopenmp-simd") == []
    assert len(ignored("#pragma omp parallel for", "-fopenmp-simd")) == 1


@pytest.mark.parametrize(
    "text", ["// #pragma omp parallel for", "#ifdef _OPENMP\n#pragma omp parallel for\n#endif"]
)
def test_a_pragma_that_is_none_or_asks_for_openmp_itself_has_no_hint(text):
    assert ignored(text) == []


def test_the_warning_is_in_the_report_of_a_notebook(shell):
    text = LOOP.replace("PRAGMA", "#pragma omp parallel for")
    assert "! cell: '#pragma omp parallel for' at line 4" in shell.kernel(text).text
    assert "ignored" not in shell.kernel(text, "-- -fopenmp").text


def test_a_function_of_openmp_without_the_library_says_the_flag():
    text = "#include <omp.h>\nint64_t threads() { return omp_get_max_threads(); }"
    assert "Build with -fopenmp" in str(fails(text))
    assert tpkernel.build(text, flags="-fopenmp", checks=False).module.threads() >= 1


@only_x86
def test_an_intrinsic_without_its_flag_stands_at_the_cells_line_with_what_to_write():
    error = fails(INTRINSIC.replace("BEFORE ", ""))
    first = error.diagnostics[0]
    assert (first.file, first.line) == ("cell", 4)
    assert first.source_line is not None
    assert first.source_line.strip() == STORE
    assert str(error).startswith("cell:4:")
    assert "%%tpkernel -- -march=native" in str(error)
    assert '__attribute__((target("avx512f")))' in str(error)
    again = fails(INTRINSIC.replace("BEFORE ", ""), "-march=native -mno-avx512f")
    assert "does not have avx512f" in str(again)


INTRINSICS = {
    "_mm_shuffle_epi8(_mm_setzero_si128(), _mm_setzero_si128())": "ssse3",
    "_mm256_abs_epi8(_mm256_setzero_si256())": "avx2",
    "_mm256_fmadd_ps(_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps())": None,
    "_mm512_add_epi8(_mm512_setzero_si512(), _mm512_setzero_si512())": None,
    "_mm256_mask_add_epi8(_mm256_setzero_si256(), 1, _mm256_setzero_si256(), "
    "_mm256_setzero_si256())": None,
    "_mm_aesenc_si128(_mm_setzero_si128(), _mm_setzero_si128())": "",
    "_mm_crc32_u64(1, 2)": "",
    "_rdrand16_step(&two)": "",
}


@only_x86
@pytest.mark.parametrize(("call", "named"), INTRINSICS.items())
def test_the_instructions_that_a_hint_names_let_the_intrinsic_compile(call, named):
    text = f"#include <immintrin.h>\nvoid k() {{ unsigned short two = 2; (void){call}; }}"
    message = str(fails(text))
    assert "%%tpkernel -- -march=native" in message
    found = re.search(r'__attribute__\(\(target\("(.*?)"\)\)\)', message)
    if found is None:
        assert named in ("", None)
        assert "what this function stands for is not among that" in message
        return
    assert named in (found[1], None)
    tpkernel.build(text.replace("void k", f"{found[0]} void k"), checks=False)


@only_x86
def test_the_compiler_knows_all_instructions_that_a_header_can_name():
    attributes = (f'__attribute__((target("{name}")))' for name in sorted(set(_TARGET_OF.values())))
    text = "\n".join(f"{a} static void f{i}() {{}}" for i, a in enumerate(attributes))
    tpkernel.build(f"{text}\nint64_t one() {{ return 1; }}", checks=False)


@pytest.mark.parametrize(
    ("said", "notes", "named"),
    [
        ("target specific option mismatch", ["in avx2intrin.h"], "avx2"),
        ("target specific option mismatch", ["in wmmintrin.h"], ""),
        ("target specific option mismatch", ["in avx512vlbwintrin.h"], ""),
        ("target specific option mismatch", ["in arm_neon.h"], ""),
        ("target specific option mismatch", [], ""),
        ("'f' requires target feature 'avx512vl,avx512bw', but", [], "avx512vl,avx512bw"),
        ("'f' requires target feature 'sse4.2|crc32', but", [], ""),
        ("'f' needs isa option -mavx512f", [], "avx512f"),
        ("'f' needs isa option -mavx512f -mavx512vl", [], ""),
    ],
)
def test_instructions_are_named_only_where_it_is_known_which(said, notes, named):
    line = cpp_jit.Diagnostic(1, 1, "error", said, notes=tuple(notes))
    hint = compiler_hint(cpp_jit.BuildError("", diagnostics=(line,)), ())
    assert "-march=native" in hint
    assert (f'target("{named}")' in hint) == bool(named)
    assert ("__attribute__" in hint) == bool(named)
    assert (
        named
        or "this machine"
        in compiler_hint(cpp_jit.BuildError("", diagnostics=(line,)), ("-march=native",)).lower()
    )


@only_x86
def test_the_attribute_of_the_hint_builds_also_on_templates_and_lambdas():
    attribute = '__attribute__((target("avx512f")))'
    tpkernel.build(INTRINSIC.replace("BEFORE", attribute), checks=False)
    call = f"tp::parallel_for(0, x.numel() / 16, [&](int64_t i) {attribute} {{ {STORE} }});"
    inside = f"template <class T> {attribute} void k(tp::In<T> x, tp::Out<T> out) {{ {call} }}"
    front = "/*---\nop: hinted::k(Tensor x) -> Tensor\ndtypes: float32\n---*/\n"
    built = tpkernel.build(f"{front}#include <immintrin.h>\n{inside}", checks=False)
    assert built.module.k(tp.ones(0)).tolist() == []  # runs on processors without them, too


@only_x86
def test_an_intrinsic_in_an_included_cell_stands_at_that_cells_line(shell):
    helper = (
        "#include <immintrin.h>\n"
        "template <class V> static V add(V a) { return _mm512_add_ps(a, a); }\n"
        "int64_t one() { return 1; }"
    )
    assert shell.kernel(helper).error is None
    ran = shell.kernel(
        '#include "cell:one"\nvoid k(tp::In<float> x, tp::Out<float> out) {\n'
        "  _mm512_storeu_ps(out.data(), add(_mm512_loadu_ps(x.data())));\n}"
    )
    placed = {(d.file.partition("[")[0], d.line) for d in ran.error.diagnostics if d.line}
    assert placed <= {("In", 3), ("In", 4)}
    assert "_mm512_" in (ran.error.diagnostics[0].source_line or "")
