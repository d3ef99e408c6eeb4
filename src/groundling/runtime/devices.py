"""Devices: their names, memory and share among processes."""

import os

import torch

from groundling.errors import ConfigError


def find_device(name: str | torch.device) -> torch.device:
    """Return a device by name; "auto" is the accelerator if there is a usable one.

    Actions and tokens are drawn in float64, which Apple's GPUs (mps) do not support. Several processes on one machine
    each take the GPU of their ``LOCAL_RANK``, by torchrun's convention.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if name == "auto":
        name = accelerator if accelerator is not None and _has_float64(accelerator) else torch.device("cpu")
    local_rank = launched("LOCAL_RANK", -1)
    if str(name) == "cuda" and local_rank >= 0 and torch.cuda.is_available():
        name = f"cuda:{local_rank % torch.cuda.device_count()}"
    there = "cpu" if accelerator is None else f"cpu, {accelerator}"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(f"device={name} cannot be used on this machine: there is {there}") from error
    if device.type == "meta":
        raise ConfigError(f"device={name} holds no numbers to compute with: there is {there}")
    if not _has_float64(device):
        raise ConfigError(f"device={name} has no float64, in which actions and tokens are drawn: set device=cpu")
    return device


def device_under_map(device: str, device_map: str | None) -> str:
    """Return ``device``, or the first GPU of this process's share if a device map spreads the model over it."""
    if device_map is None or launched("LOCAL_WORLD_SIZE", 1) == 1 or device not in ("auto", "cuda"):
        return device
    return f"cuda:{share_of_gpus()[0]}"


def share_of_gpus() -> range:
    """Return this process's equal share of the machine's GPUs, by ``LOCAL_RANK`` of ``LOCAL_WORLD_SIZE``."""
    processes, count = launched("LOCAL_WORLD_SIZE", 1), torch.cuda.device_count()
    if not count or count % processes:
        raise ConfigError(
            f"model.device_map spreads the model of each of the {processes} processes on this machine over GPUs of its "
            f"own, and there are {count}, expected a multiple of {processes}: start torchrun with a --nproc-per-node "
            "that divides them, or set model.device_map=null"
        )
    each, rank = count // processes, launched("LOCAL_RANK", 0)
    return range(rank * each, (rank + 1) * each)


def free_memory(device: torch.device) -> int:
    """Return the bytes that this process can allocate on a device, within its limit (``ulimit -v``) if it has one."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    import resource

    import psutil  # a dependency of accelerate

    free, limit = psutil.virtual_memory().available, resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        free = min(free, max(0, limit - psutil.Process().memory_info().vms))
    return int(free)


def _has_float64(device: torch.device) -> bool:
    try:
        torch.empty(0, dtype=torch.float64, device=device)
    except TypeError:
        return False
    return True


def launched(name: str, default: int) -> int:
    """Return a number that launchers set in the environment, such as ``RANK``; `ConfigError` if it is invalid."""
    text = os.environ.get(name)
    if text is None:
        return default
    least = int(name.endswith("SIZE"))
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(
            f"{name}={text!r:.40} in the environment is not a whole number of at least {least}: start several "
            f"processes with torchrun, accelerate launch or --slurm, or take it out with `unset {name}`"
        )
    return int(text)
