"""The worker's configuration: read from the environment once, frozen, each field with unit and default."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ConfigError

_BYTES = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB)?\s*$")
_BYTE_VARIABLES = ("ENGINE_KV_BYTES", "ENGINE_HOST_BYTES", "ENGINE_DISK_BYTES", "ENGINE_TRACE_BYTES")
_UNIT = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All settings of one worker; both processes read the same environment."""

    model: str = "smollm2-135m-instruct"  # ENGINE_MODEL: the default model, a folder, a .gguf file or a hub id
    model_name: str = ""  # ENGINE_MODEL_NAME: public name; empty: derived from `model`
    dtype: str = "auto"  # ENGINE_DTYPE: auto, float32, bfloat16
    weight_dtype: str = "auto"  # ENGINE_WEIGHT_DTYPE: auto (`dtype`), int8 (CPU: half the bytes, faster small batches)
    device: str = "auto"  # ENGINE_DEVICE: auto, cpu, cuda
    backend: str = "auto"  # ENGINE_BACKEND: auto, reference, cpu, triton
    load_format: str = "auto"  # ENGINE_LOAD_FORMAT: auto, dummy (random weights, no file read: benchmarks of speed)
    kv_bytes: int = 1 << 30  # ENGINE_KV_BYTES: device pool, bytes
    host_bytes: int = 1 << 30  # ENGINE_HOST_BYTES: host memory for blocks swapped out of the pool, bytes; 0: none
    disk_bytes: int = 2 << 30  # ENGINE_DISK_BYTES: disk for blocks that outlive the worker, bytes; 0: none
    disk_dir: str = ""  # ENGINE_DISK_DIR: folder of its own for them, best on a local NVMe; empty: disk in `state_dir`
    trace_bytes: int = 64 << 20  # ENGINE_TRACE_BYTES: ring file of what was asked, for previews of limits; 0: none
    reuse_model: str = ""  # ENGINE_REUSE_MODEL: file of the trained reuse predictor; empty: reuse.json in `state_dir`
    preview_nice: int = 19  # ENGINE_PREVIEW_NICE: of the process that answers previews; 19: when all else is idle
    block_size: int = 16  # ENGINE_BLOCK_SIZE: token slots of a block
    max_batched_tokens: int = 512  # ENGINE_MAX_BATCHED_TOKENS: tokens of one step
    overlap: str = "auto"  # ENGINE_OVERLAP: plan a step while the one before it runs: auto (on CUDA), on, off
    graphs: str = "auto"  # ENGINE_GRAPHS: decode steps as CUDA graphs, captured at start: auto (on CUDA), off
    max_running: int = 256  # ENGINE_MAX_RUNNING: sequences that hold blocks at once, all tenants
    max_context: int = 0  # ENGINE_MAX_CONTEXT: tokens; 0: the model's own
    threads: int = 0  # ENGINE_THREADS: compute threads; 0: from the affinity mask and the control groups' CPU quota
    poison: bool = False  # ENGINE_POISON: fill fresh and freed pages with NaN
    address: str = "127.0.0.1:7070"  # ENGINE_ADDRESS: host:port or unix:/path to listen on
    announce_address: str = ""  # ENGINE_ANNOUNCE_ADDRESS: what others dial; empty: `address`
    announce_url: str = ""  # ENGINE_ANNOUNCE_URL: control plane to announce to; empty: none
    token: str = ""  # ENGINE_TOKEN: bearer token of every call, required
    worker_id: str = "worker-0"  # ENGINE_WORKER_ID: stable name of this worker
    state_dir: Path = Path("var/engine")  # ENGINE_STATE_DIR: journal, counters, last policy, ipc socket
    drain_seconds: int = 5  # ENGINE_DRAIN_SECONDS: how long running requests may go on after SIGTERM
    stall_seconds: int = 60  # ENGINE_STALL_SECONDS: a core that was ready and is silent so long starts anew; 0: never
    tls_cert: str = ""  # ENGINE_TLS_CERT, ENGINE_TLS_KEY: PEM files; empty: plain text (one machine only)
    tls_key: str = ""

    @property
    def disk_folder(self) -> Path:
        """Say where the blocks on disk lie."""
        return Path(self.disk_dir) if self.disk_dir else self.state_dir / "disk"

    @property
    def reuse_path(self) -> Path:
        """Say where the reuse predictor is published."""
        return Path(self.reuse_model) if self.reuse_model else self.state_dir / "reuse.json"

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> "EngineConfig":
        """Read and check the environment.

        Raises:
            ConfigError: names the variable, its value and what it takes.
        """
        source = os.environ if env is None else env
        values: dict[str, object] = {}
        for name, default in ((f, getattr(cls(), f)) for f in cls.__dataclass_fields__):
            variable = f"ENGINE_{name.upper()}"
            raw = source.get(variable, "").strip()
            if raw:
                values[name] = _parse(variable, raw, default)
        config = cls(**values)  # type: ignore[arg-type]  # each value was parsed to its default's type
        config._check()
        return config

    def _check(self) -> None:
        choices = {
            "dtype": ("auto", "float32", "bfloat16"),
            "weight_dtype": ("auto", "int8"),
            "device": ("auto", "cpu", "cuda"),
            "backend": ("auto", "reference", "cpu", "triton"),
            "load_format": ("auto", "dummy"),
            "overlap": ("auto", "on", "off"),
            "graphs": ("auto", "off"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(f"ENGINE_{name.upper()}={getattr(self, name)!r}: choose one of {', '.join(allowed)}")
        for name in ("kv_bytes", "block_size", "max_batched_tokens", "max_running"):
            if getattr(self, name) < 1:
                raise ConfigError(f"ENGINE_{name.upper()} must be at least 1")
        byte_names = ("host_bytes", "disk_bytes", "trace_bytes")
        for name in (*byte_names, "max_context", "threads", "drain_seconds", "stall_seconds"):
            if getattr(self, name) < 0:
                raise ConfigError(f"ENGINE_{name.upper()}={getattr(self, name)}: must be at least 0")
        if not 0 <= self.preview_nice <= 19:
            raise ConfigError(f"ENGINE_PREVIEW_NICE={self.preview_nice}: must be from 0 to 19")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("ENGINE_TLS_CERT and ENGINE_TLS_KEY go together: set both or neither")


def parse_bytes(text: str) -> int:
    """Return the bytes in `536870912` or `512MiB`. Raises ValueError with the accepted forms."""
    match = _BYTES.match(text)
    if match is None:
        raise ValueError("write a plain number of bytes or one with B, KiB, MiB, GiB or TiB, such as 512MiB")
    return int(float(match[1]) * _UNIT[match[2] or "B"])


def _parse(variable: str, raw: str, default: object) -> object:
    try:
        if isinstance(default, bool):
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[raw.lower()]
        if variable in _BYTE_VARIABLES:
            return parse_bytes(raw)
        if isinstance(default, int):
            return int(raw)
        return Path(raw) if isinstance(default, Path) else raw
    except (ValueError, KeyError) as error:
        hint = str(error) if variable in _BYTE_VARIABLES else f"expected {type(default).__name__}"
        raise ConfigError(f"{variable}={raw!r}: {hint}") from error
