"""Which SGLang the adapter is written to, and what of its arguments is tttdd's to set: checked before a start."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata

VERSIONS = ((0, 5, 15), (0, 5, 18))
"""SGLang releases whose HTTP contract this adapter is written to: from the first, below the second."""
WANTED = "sglang>={}.{}.{},<{}.{}.{}".format(*VERSIONS[0], *VERSIONS[1])
OURS = frozenset(
    {
        "model_path",
        "log_level",
        "tp_size",
        "dp_size",
        "pp_size",
        "base_gpu_id",
        "admin_api_key",
        "skip_tokenizer_init",
        "lora_paths",
        "host",
        "port",
        "api_key",
        "context_length",
        "dtype",
        "mem_fraction_static",
        "max_running_requests",
        "enable_lora",
        "max_lora_rank",
        "lora_target_modules",
        "max_loras_per_batch",
        "max_loaded_loras",
        "enable_memory_saver",
        "skip_server_warmup",
        "incremental_streaming_output",
        "sleep_on_idle",
        "random_seed",
    }
)
"""ServerArgs that are set from the rest of the configuration, or must stay as they are for the adapter to work."""


class Unsupported(RuntimeError):
    """SGLang cannot be started as configured: missing, of a version not known here, or told what is not to be told."""


def supported(version: str) -> bool:
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:3] if part.isdigit())
    return VERSIONS[0] <= numbers < VERSIONS[1]


def check(arguments: Iterable[str]) -> None:
    """Raises Unsupported, also for `arguments` that are set here."""
    if taken := sorted(OURS & set(arguments)):
        raise Unsupported(f"engine.arguments: tttdd sets {', '.join(taken)} itself; leave it out")
    try:
        found = metadata.version("sglang")
    except metadata.PackageNotFoundError:
        raise Unsupported(f"SGLang is not installed; pip install '{WANTED}'") from None
    if not supported(found):
        raise Unsupported(f"SGLang {found} is installed, but this version of tttdd speaks to {WANTED}")
