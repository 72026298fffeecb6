"""An attention's form as its kernels take it."""

import torch

from kernels.batch import AttentionForm

_NO_WINDOW = 2**31 - 1


def form_arguments(form: AttentionForm, dtype: torch.dtype) -> dict[str, float | int | bool | str]:
    """Return the kernels' arguments; float32 multiplies in full precision, never in TF32."""
    return {
        "scale": form.scale,
        "soft_cap": form.soft_cap,
        "window": form.window or _NO_WINDOW,
        "CAPPED": form.soft_cap > 0,
        "WINDOWED": form.window > 0,
        "PRECISION": "ieee" if dtype == torch.float32 else "tf32",
    }
