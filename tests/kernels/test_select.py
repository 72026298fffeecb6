"""The choice of a backend and the compilation of the C++ one."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.cpu import build
from kernels.cpu.library import Library
from kernels.cpu.linear import PackedLinear, choose_linear
from kernels.cpu.ops import CpuOps
from kernels.errors import BackendUnavailable
from kernels.ops import select_backend

CPU, ROOT = torch.device("cpu"), Path(__file__).resolve().parents[2]


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a compiler and with an empty cache."""
    monkeypatch.setenv("TOLLGATE_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")


def test_auto_says_what_it_chose(caplog: pytest.LogCaptureFixture) -> None:
    """With a compiler the C++ kernels serve, and the log says so."""
    with caplog.at_level(logging.INFO, "tollgate.kernels"):
        assert select_backend("auto", device=CPU, dtype=torch.float32).name == "cpu"
    assert "C++ on cpu" in caplog.text


@pytest.mark.usefixtures("no_compiler")
def test_without_compiler_the_reference_serves_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """`auto` falls back aloud; `cpu` by name is refused with the fix."""
    with caplog.at_level(logging.WARNING, "tollgate.kernels"):
        assert select_backend("auto", device=CPU, dtype=torch.float32).name == "reference"
    assert "no C++ compiler" in caplog.text
    with pytest.raises(BackendUnavailable, match="install g\\+\\+"):
        select_backend("cpu", device=CPU, dtype=torch.float32)


@pytest.mark.parametrize(("device", "dtype"), [("cpu", torch.float16), ("meta", torch.float32)])
def test_cpu_backend_refuses_what_it_cannot_compute(device: str, dtype: torch.dtype) -> None:
    """Another dtype or device is refused rather than computed wrongly."""
    with pytest.raises(BackendUnavailable, match="float32 and bfloat16 on the CPU"):
        CpuOps.load(torch.device(device), dtype)


def test_build_is_idempotent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command builds once, leaves nothing else behind, and then only says where the library is."""
    monkeypatch.setenv("TOLLGATE_CACHE", str(tmp_path))
    command = [sys.executable, "-m", "kernels.cpu.build"]
    first = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (made,) = (tmp_path / "kernels").iterdir()
    stamp = made.stat().st_mtime_ns
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == first.stdout
    assert made.stat().st_mtime_ns == stamp
    assert Library(made).best_level >= 0


@pytest.mark.usefixtures("no_compiler")
def test_build_command_without_compiler_succeeds() -> None:
    """Set-up goes on without a compiler and says what serves instead."""
    done = subprocess.run(
        [sys.executable, "-m", "kernels.cpu.build"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "reference kernels serve" in done.stderr


def test_failed_compilation_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that fails is quoted, and nothing is cached."""
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho broken compiler >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("TOLLGATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(BackendUnavailable, match="broken compiler"):
        build.library()
    assert not list((tmp_path / "cache" / "kernels").iterdir())


def test_library_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that loses its power leaves no half of a library to be loaded."""
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\nwhile [ $# -gt 1 ]; do [ "$1" = -o ] && echo made > "$2"; shift; done; exit 0\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("TOLLGATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(compiler))
    named: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda _: named.append(any((tmp_path / "cache" / "kernels").glob("*.so"))))
    assert build.library().read_text() == "made\n"
    assert named == [False]


def test_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing says where a cache may be, the reference serves and the message names the setting."""
    monkeypatch.delenv("TOLLGATE_CACHE", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 5)  # in no list of users
    with pytest.raises(BackendUnavailable, match="set TOLLGATE_CACHE"):
        build.library()


def test_unloadable_library_is_explained(tmp_path: Path) -> None:
    """A file that is no library names itself and the way out."""
    path = tmp_path / "broken.so"
    path.write_bytes(b"not a library")
    with pytest.raises(BackendUnavailable, match="remove it to build it again"):
        Library(path)


def test_packed_linears_serve_where_torch_has_them() -> None:
    """The probe finds oneDNN's packing right in both dtypes of this machine's torch."""
    assert choose_linear(torch.float32) is PackedLinear
    assert choose_linear(torch.bfloat16) is PackedLinear


def test_large_tensors_ask_for_huge_pages() -> None:
    """Importing the kernels first makes torch advise them for what is as large as weights and pools."""
    script = """
import kernels, torch
large = torch.zeros(64 << 20, dtype=torch.uint8)
middle = large.data_ptr() + (32 << 20)
inside = False
for line in open("/proc/self/smaps"):
    span = line.split(" ", 1)[0]
    if "-" in span and not line.startswith("VmFlags"):
        low, high = (int(end, 16) for end in span.split("-"))
        inside = low <= middle < high
    elif inside and line.startswith("VmFlags"):
        print("hg" in line.split())
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_spin_is_bounded_before_torch_loads() -> None:
    """Importing the kernels bounds OpenMP's spin unless the environment has its own bound, and loads no torch."""
    script = "import os, sys, kernels; print(os.environ['GOMP_SPINCOUNT'], 'torch' in sys.modules)"
    for given, expected in (({}, "300 False"), ({"GOMP_SPINCOUNT": "7"}, "7 False")):
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, env=given, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == expected
