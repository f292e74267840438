"""CUDA sources, on machines without a GPU: built for what, refused why, told how."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit import cuda, nvrtc
from tensorplay.utils.cpp_jit.diagnostics import Texts, parse

DEVICE = """
__global__ void one(float* x) { x[0] = 1.0f; }
void go(tvm::ffi::TensorView x) { one<<<1, 1>>>(static_cast<float*>(x.data_ptr())); }
void noop() { one<<<1, 1>>>(nullptr); }
"""

PTXAS = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z3onePf' for 'sm_75'
ptxas info    : Function properties for _Z3onePf
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 4 registers, used 0 barriers, 2048 bytes smem, 360 bytes cmem[0]
ptxas info    : Compiling entry function 'plain' for 'sm_90'
ptxas info    : Function properties for plain
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, 400 bytes cmem[0]
"""

DRYRUN = """#$ _HERE_={root}/bin
#$ TOP={root}/bin/..
#$ INCLUDES="-I{root}/bin/../include dir"
#$ LIBRARIES=  "-L{root}/bin/../lib/stubs" "-L{root}/bin/../lib"
#$ gcc -E -D__CUDACC_VER_MAJOR__=12 -D__CUDACC_VER_MINOR__=4 probe.cu
"""


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def plain_environment(monkeypatch):
    """Hide what this machine has of CUDA."""
    for name in ("CUDA_HOME", "CUDA_PATH", "TVM_FFI_CUDA_ARCH_LIST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cuda, "_USUAL", "/nowhere/nvcc")
    monkeypatch.setattr(cuda, "_accepted", {})
    cuda._present.cache_clear()
    yield
    cuda._present.cache_clear()


@pytest.mark.usefixtures("plain_environment")
def test_what_is_built_for(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    default = cuda.target()
    assert default.architectures == ("sm_75", "compute_75")
    assert "no GPU to ask" in default.text
    monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", "8.0 9.0")
    asked = cuda.target()
    assert asked.flags == (
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90,code=sm_90",
        "-gencode=arch=compute_90,code=compute_90",
    )
    monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", "9.0a")  # whose PTX runs nowhere else
    assert cuda.target().architectures == ("sm_90a",)
    monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", "sm_90")
    with pytest.raises(ValueError, match=r"expected architectures such as 8\.0 9\.0a, got 'sm_90'"):
        cuda.target()
    monkeypatch.delenv("TVM_FFI_CUDA_ARCH_LIST")
    script(tmp_path / "nvidia-smi", "echo 8.9; echo 8.9")
    cuda._present.cache_clear()
    present = cuda.target()
    assert present.architectures == ("sm_89", "compute_89")
    assert present.reason == "the GPU in this machine"
    script(tmp_path / "nvidia-smi", "echo NVIDIA-SMI has failed; exit 9")
    cuda._present.cache_clear()
    assert cuda.target().architectures == ("sm_75", "compute_75")


@pytest.mark.usefixtures("plain_environment")
def test_b004_the_toolkit_is_where_the_compiler_says_not_where_the_program_lies(
    tmp_path, monkeypatch
):
    root = tmp_path / "real toolkit"
    answer = tmp_path / "answer"
    answer.write_text(DRYRUN.format(root=root))
    wrapper = script(tmp_path / "bin" / "nvcc", f'cat "{answer}" >&2')
    monkeypatch.setenv("PATH", f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}")
    toolkit = cuda.find_toolkit()
    assert (toolkit.root, toolkit.version) == (root, "12.4")
    assert toolkit.include_paths == (str(root / "include dir"),)
    assert toolkit.library_paths == (str(root / "lib" / "stubs"), str(root / "lib"))
    answer.write_text("nvcc: no idea\n")
    script(wrapper, f'cat "{answer}" >&2 # another program')
    with pytest.raises(cpp_jit.MissingToolError, match="does not say where its toolkit is"):
        cuda.find_toolkit()


#: The forms in which versions of nvcc name their folders; {part} is the target's.
VERSION = (
    "#$ gcc -E -D__CUDACC_VER_MAJOR__={0} -D__CUDACC_VER_MINOR__={1} -D__CUDACC_VER_BUILD__=1\n"
)
DRYRUNS = {
    "11.8": """#$ TOP={root}/bin/..
#$ INCLUDES="-I{root}/bin/..//include"
#$ LIBRARIES=  "-L{root}/bin/..//lib64/stubs" "-L{root}/bin/..//lib64"
""",
    "12.4": """#$ TOP={root}/bin/..
#$ INCLUDES="-I{part}/include"
#$ LIBRARIES=  "-L{part}/lib/stubs" "-L{part}/lib"
""",
    "13.0": """#$ TOP={root}/bin/..
#$ INCLUDES="-I{part}/include"
#$ SYSTEM_INCLUDES="-isystem" "{part}/include/cccl"
#$ LIBRARIES=  "-L{part}/lib/stubs" "-L{part}/lib"
""",
}


@pytest.mark.usefixtures("plain_environment")
@pytest.mark.parametrize("version", list(DRYRUNS))
def test_b004_every_version_of_the_compiler_says_where_its_toolkit_is(
    tmp_path, monkeypatch, version
):
    root = tmp_path / "cuda"
    answer = tmp_path / "answer"
    target = f"{root}/bin/../targets/x86_64-linux"
    said = DRYRUNS[version].format(root=root, part=target) + VERSION.format(*version.split("."))
    answer.write_text(said)
    script(root / "bin" / "nvcc", f'cat "{answer}" >&2')
    monkeypatch.setenv("CUDA_HOME", str(root))
    toolkit = cuda.find_toolkit()
    part = root if version == "11.8" else root / "targets" / "x86_64-linux"
    libraries = "lib64" if version == "11.8" else "lib"
    assert (toolkit.root, toolkit.version) == (root, version)
    headers = [part / "include", part / "include" / "cccl"]
    assert toolkit.include_paths == tuple(map(str, headers[: 1 + (version == "13.0")]))
    assert toolkit.library_paths[-1] == str(part / libraries)


@pytest.mark.parametrize(
    "said",
    [
        "host_config.h:132:2: error: #error -- unsupported GNU version! gcc versions later",
        "host_config.h:148:2: error: #error -- unsupported clang version! clang version must",
        "nvcc fatal   : host compiler 'g++-5' is not supported",
    ],
)
def test_refusals_of_a_host_compiler_are_recognised(said):
    assert cuda._REFUSED.search(said)


@pytest.mark.usefixtures("plain_environment")
def test_b004_a_host_compiler_that_the_toolkit_accepts_is_found_or_named(tmp_path, monkeypatch):
    tools = tmp_path / "bin"
    for name in ("g++", "g++-13", "g++-11"):
        script(tools / name, "exit 0")
    answer = tmp_path / "answer"
    answer.write_text(DRYRUN.format(root=tmp_path))
    body = (
        f'case "$*" in *dryrun*) /bin/cat "{answer}" >&2; exit 0;;\n'
        '*ccbin*"$ACCEPTED"*) exit 0;; esac\n'
        'echo "#error -- unsupported GNU version! later than 11 are not supported!" >&2\n'
        "exit 1"
    )
    script(tools / "nvcc", body)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("ACCEPTED", "g++-11")
    toolkit = cuda.find_toolkit()
    done = cuda.run_nvcc(toolkit, ("-c", "x.cu"), tmp_path)
    assert done.returncode == 0
    assert done.command[1:3] == ("-ccbin", str(tools / "g++-11"))
    assert cuda._hosts(toolkit)[0] == str(tools / "g++-11")  # the next build asks it first
    monkeypatch.setattr(cuda, "_accepted", {})
    monkeypatch.setenv("ACCEPTED", "none")
    with pytest.raises(
        cpp_jit.MissingToolError,
        match=r"CUDA 12\.4 accepts none of .*g\+\+-13.*later than 11 are not supported.*Install",
    ):
        cuda.run_nvcc(toolkit, ("-c", "x.cu"), tmp_path)


@pytest.mark.usefixtures("plain_environment")
def test_without_a_cuda_compiler_the_error_says_what_to_install(monkeypatch, tmp_path):
    compiler = shutil.which("c++")
    assert compiler is not None
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    with pytest.raises(cpp_jit.MissingToolError) as caught:
        cpp_jit.load_inline("nocuda", cuda_sources=DEVICE, functions="go")
    for part in (str(tmp_path / "cuda"), "nvcc on PATH", "conda install", "apt-get", "CUDA_HOME"):
        assert part in str(caught.value)


@pytest.mark.usefixtures("plain_environment")
def test_compilers_of_the_python_packages_are_found(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    packages = tmp_path / "nvidia"
    monkeypatch.setattr(cuda, "package_folders", lambda: (packages,))
    nvcc = script(packages / "cu13" / "bin" / "nvcc", "exit 0")
    assert cuda.find_nvcc().command == (str(nvcc),)
    library = packages / "cu13" / "lib" / "libnvrtc.so.13"
    library.parent.mkdir()
    for name in (library.name, "libnvrtc.alt.so.13", "libnvrtc-builtins.so.13.5"):
        (library.parent / name).touch()
    assert nvrtc.find_nvrtc() == library
    assert nvrtc.version(library) == "13.5"
    on_path = script(tmp_path / "nvcc", "exit 0")
    assert cuda.find_nvcc().command == (str(on_path),)
    home = script(tmp_path / "home" / "bin" / "nvcc", "exit 0")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert cuda.find_nvcc().command == (str(home),)
    monkeypatch.setattr(cuda, "package_folders", tuple)
    toolkit = tmp_path / "home" / "lib64" / "libnvrtc.so.12"
    toolkit.parent.mkdir()
    toolkit.touch()
    assert nvrtc.find_nvrtc() == toolkit
    assert nvrtc.version(toolkit) == "unknown version"


def test_registers_and_spills_are_read():
    first, second = cuda.kernels(PTXAS)
    assert first == {
        "name": "one(float*)",
        "target": "sm_75",
        "registers": 4,
        "shared": 2048,
        "stack": 16,
        "spill_stores": 8,
        "spill_loads": 12,
    }
    assert (second["name"], second["registers"], second["shared"]) == ("plain", 10, 0)


def test_messages_of_nvcc_become_diagnostics():
    output = (
        'In[3](3): error: identifier "yy" is undefined\n   x[0] = yy; }\n          ^\n\n'
        'In[3](2): warning #177-D: variable "unused" was declared but never referenced\n'
        "   int unused = 3;\n       ^\n\nRemark: The warnings can be suppressed\n\n"
        "nvcc fatal   : Unsupported gpu architecture 'compute_10'\n"
    )
    text = ["__global__ void one(float* x) {", " int unused = 3;", " x[0] = yy; }"]
    error, fatal, warning = parse(output, Texts("In[3]", {"In[3]": (1, text)}))
    assert (error.line, error.column, error.source_line) == (3, 9, " x[0] = yy; }")
    assert error.message == 'identifier "yy" is undefined'
    assert (warning.level, warning.line, warning.column) == ("warning", 2, 6)
    assert fatal.message == "Unsupported gpu architecture 'compute_10'"


needs_nvcc = pytest.mark.skipif(
    shutil.which("nvcc") is None and not Path(cuda._USUAL).exists(),
    reason="there is no nvcc on this machine",
)
needs_nvrtc = pytest.mark.skipif(
    nvrtc.find_nvrtc() is None, reason="there is no NVRTC here (pip install nvidia-cuda-nvrtc)"
)
needs_no_gpu = pytest.mark.skipif(
    Path("/dev/nvidiactl").exists(), reason="what a machine without a GPU says is tested"
)


@needs_nvcc
@needs_no_gpu
def test_b011_without_a_gpu_it_builds_and_says_for_what_and_calls_say_why_not(monkeypatch):
    monkeypatch.delenv("TVM_FFI_CUDA_ARCH_LIST", raising=False)
    module = cpp_jit.load_inline("dev", cuda_sources=DEVICE, functions={"go": "Docs.", "noop": ""})
    assert module.go.__doc__ == "Docs."
    with pytest.raises(
        ValueError, match=r"\[go\] argument 'x': expected a tensor on cuda, got one on cpu"
    ):
        module.go(np.ones(3, np.float32))
    with pytest.raises(
        RuntimeError, match=r"\[noop\] cannot run here: no GPU .*It was built for sm_75, compute_75"
    ):
        module.noop()
    found = cpp_jit.cache.entries("dev")[0]
    assert found.folder == module.path.parent
    again = cpp_jit.load_inline("dev", cuda_sources=DEVICE, functions={"go": "Docs.", "noop": ""})
    assert again.path == module.path


@needs_nvcc
@needs_no_gpu
def test_launches_of_the_cpp_part_are_reported_too():
    module = cpp_jit.load_inline(
        "both",
        cpp_sources="void launch();\nint64_t f(int64_t a) { launch(); return a; }\n"
        "int64_t host(int64_t a) { return a + 1; }",
        cuda_sources="__global__ void k() {}\nvoid launch() { k<<<1, 1>>>(); }",
        functions=["f", "host"],
    )
    assert module.host(1) == 2
    with pytest.raises(RuntimeError, match=r"\[f\] the launch failed: .*GPU: there is none"):
        module.f(3)


@needs_nvcc
def test_errors_of_cuda_text_stand_at_their_own_lines():
    text = "__global__ void k(float* x) {\n  x[0] = yy;\n}\nvoid go() { k<<<1, 1>>>(nullptr); }"
    with pytest.raises(cpp_jit.BuildError, match='identifier "yy" is undefined') as caught:
        cpp_jit.load_inline("bad", cuda_sources=text, functions="go")
    first = caught.value.diagnostics[0]
    assert (first.file, first.line, first.column) == ("bad.cu", 2, 10)
    assert len(caught.value.commands) == 1
    with pytest.raises(cpp_jit.BuildError, match=r"`k` is a kernel .* export a function"):
        cpp_jit.load_inline("bad", cuda_sources=text, functions=["k", "go"])


@needs_nvcc
@pytest.mark.slow
def test_binaries_are_made_and_embedded():
    kernel = 'extern "C" __global__ void add_one(float* x) { x[threadIdx.x] += 1; }'
    cubin = cpp_jit.compile_cubin(kernel, architecture="8.0")
    assert cubin.architecture == "sm_80"
    assert cubin.content.startswith(b"\x7fELF")
    assert cubin.kernels[0]["name"] == "add_one"
    assert cubin.kernels[0]["registers"] > 0
    with pytest.raises(cpp_jit.BuildError, match="yy") as caught:
        cpp_jit.compile_cubin("__global__ void f(float* x) {\n  x[0] = yy;\n}", name="In[7]")
    assert (caught.value.diagnostics[0].file, caught.value.diagnostics[0].line) == ("In[7]", 2)
    text = (
        "#include <tvm/ffi/extra/cuda/cubin_launcher.h>\nTVM_FFI_EMBED_CUBIN(env);\n"
        "int64_t size() { return __tvm_ffi__cubin_env_end - __tvm_ffi__cubin_env; }\n"
    )
    embed = {"env": cubin.content}
    module = cpp_jit.load_inline("embed", cpp_sources=text, functions="size", embed_cubin=embed)
    assert module.size() == len(cubin.content)
    alone = cpp_jit.load_inline("alone", cuda_sources=text, functions="size", embed_cubin=embed)
    if not Path("/dev/nvidiactl").exists():
        with pytest.raises(RuntimeError, match=r"\[size\] cannot run here: no GPU that CUDA can"):
            alone.size()  # as every function of a CUDA text on a machine without one


@pytest.mark.usefixtures("plain_environment")
def test_binaries_are_embedded_without_any_toolkit(monkeypatch, tmp_path):
    compiler = shutil.which("c++")
    assert compiler is not None
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("PATH", os.pathsep.join(("/usr/bin", "/bin")))
    if shutil.which("nvcc"):
        pytest.skip("nvcc lies beside the C++ compiler")
    monkeypatch.setattr(cuda, "package_folders", tuple)
    text = (
        'extern "C" const char __tvm_ffi__cubin_env[];\nextern "C" const char '
        "__tvm_ffi__cubin_env_end[];\nint64_t size() { return __tvm_ffi__cubin_env_end - "
        "__tvm_ffi__cubin_env; }\n"
    )
    embed = {"env": b"12345"}
    module = cpp_jit.load_inline("bare", cpp_sources=text, functions="size", embed_cubin=embed)
    assert module.size() == 5
    with pytest.raises(
        cpp_jit.MissingToolError, match=r"(?s)'bare' includes cuda.*\.h.*pip install nvidia-cuda-ru"
    ) as caught:
        cpp_jit.load_inline(
            "bare",
            cpp_sources=f"#include <tvm/ffi/extra/cuda/cubin_launcher.h>\n{text}",
            functions="size",
            embed_cubin=embed,
        )
    assert "tensorplay/cuda_launch.h" in str(caught.value)
    headers = tmp_path / "cu13" / "include"
    headers.mkdir(parents=True)
    (headers / "cuda_runtime.h").write_text("#define FROM_PACKAGE 7\n")
    monkeypatch.setattr(cuda, "package_folders", lambda: (tmp_path,))
    found = cuda.host_toolkit()
    assert (found.root, found.version) == (tmp_path / "cu13", "13")
    assert found.include_paths == (str(headers),)


@needs_nvcc
@pytest.mark.slow
def test_several_files_are_built_at_once_with_their_flags(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.cu").write_text(
            f"#include <tvm/ffi/function.h>\n__global__ void k_{name}() {{}}\n"
            "int64_t shared_part(int64_t);\n"
            f"static int64_t {name}(int64_t a) {{ return shared_part(a) + MINE; }}\n"
            f"TVM_FFI_DLL_EXPORT_TYPED_FUNC({name}, {name});\n"
        )
    (tmp_path / "part.cpp").write_text("long shared_part(long a) { return 10 * a; }\n")
    merged = cpp_jit.build("part", cpp_files=[tmp_path / "part.cpp"], output="part.o")
    flags = ["-DMINE=3", '-DTEXT="a b"', "-lineinfo"]
    module = cpp_jit.load(
        "several",
        sources=[merged],
        cuda_files=[tmp_path / "one.cu", tmp_path / "two.cu"],
        extra_cuda_cflags=flags,
    )
    assert (module.one(1), module.two(2)) == (13, 23)
    assert module.build is not None
    assert module.build.cuda is not None
    assert module.build.cuda["route"] == "nvcc"
    assert len(module.build.cuda["kernels"]) == 2
    compiled = [c for c in module.build.commands if any(w.endswith(".cu") for w in c)]
    assert len(compiled) == 2
    for command in compiled:
        start = command.index(flags[0])
        assert command[start : start + 3] == tuple(flags)


@needs_nvcc
def test_errors_in_the_host_code_of_cuda_text_stand_at_their_own_lines():
    text = "__global__ void k() {}\nvoid go() {\n  k<<<1, 1>>>();\n  undeclared(3);\n}"
    with pytest.raises(cpp_jit.BuildError, match="undeclared") as caught:
        cpp_jit.load_inline("hostbad", cuda_sources=text, functions="go")
    first = caught.value.diagnostics[0]
    assert (first.file, first.line) == ("hostbad.cu", 4)
    with pytest.raises(cpp_jit.BuildError, match=r"too many arguments|cannot be|no instance|argu"):
        cpp_jit.load_inline(
            "hostbad", cuda_sources=text.replace("undeclared(3)", "k<<<1, 1>>>(3)"), functions="go"
        )


@needs_nvcc
@pytest.mark.slow
def test_cuda_files_are_built_as_they_are(tmp_path):
    (tmp_path / "k.cu").write_text(
        "#include <tvm/ffi/function.h>\n__global__ void k() {}\n"
        "int64_t f(int64_t a) { return a + 1; }\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(f, f);\n"
    )
    module = cpp_jit.load("cufile", cuda_files=[tmp_path / "k.cu"])
    assert module.f(1) == 2


@needs_nvrtc
def test_the_run_time_compiler_needs_no_toolkit(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    made = cpp_jit.compile_cubin('extern "C" __global__ void k(int* x) { *x = 1; }')
    assert made.compiler == "nvrtc"
    assert made.kernels[0]["registers"] > 0


def test_a_cpp_cell_never_looks_for_cuda(monkeypatch):
    def refuse(*args: object) -> None:
        raise AssertionError("CUDA was looked for")

    for name in ("find_nvcc", "find_toolkit", "target", "_present"):
        monkeypatch.setattr(cuda, name, refuse)
    text = cpp_jit.Source("int64_t f() { return 91; }")
    assert cpp_jit.build_source("nolook", text, exports=["f"]).load().f() == 91


def test_importing_brings_no_cuda_program():
    code = "import sys, tensorplay.utils.cpp_jit; sys.exit('cupy' in sys.modules)"
    repository = str(Path(__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": repository, "PATH": ""}
    assert (
        subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
    )
