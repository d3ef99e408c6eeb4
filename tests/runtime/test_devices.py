"""Selection of the device."""

from typing import Any

import pytest
import torch
from rich.console import Console

from groundling.config.compose import compose
from groundling.errors import ConfigError
from groundling.lm.load.model import Placement
from groundling.lm.load.model_files import resolve
from groundling.runtime.devices import find_device, share_of_gpus
from groundling.training.build import world_of
from groundling.training.train import train


def test_a_gpu_without_float64_is_passed_over_and_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with Apple's GPUs, which a stand-in represents here."""
    empty = torch.empty

    def without_float64(*size: int, dtype: Any = None, device: Any = None) -> torch.Tensor:
        if torch.device(device).type != "mps":
            return empty(*size, dtype=dtype, device=device)
        if dtype is torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return empty(*size, dtype=dtype)

    monkeypatch.setattr(torch, "empty", without_float64)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("mps"))
    assert find_device("auto") == torch.device("cpu")
    with pytest.raises(ConfigError, match=r"device=mps does not support float64, .* set device=cpu"):
        find_device("mps")


def _launched(monkeypatch: pytest.MonkeyPatch, rank: int, processes: int, count: int) -> None:
    """Simulate one of torchrun's processes on a machine with GPUs."""
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**30, 2**31))
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, device=None, **more: empty(*size, **more))


def _device_of(experiment: str, *overrides: str) -> str:
    """Return the device on which one of a run's processes trains."""
    return world_of(compose(experiment, overrides)).device


def test_processes_share_gpus_in_the_order_of_their_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = []
    for rank in range(4):
        _launched(monkeypatch, rank, 4, 8)
        shares.append(list(share_of_gpus()))
    assert shares == [[0, 1], [2, 3], [4, 5], [6, 7]]
    _launched(monkeypatch, 0, 1, 3)
    assert list(share_of_gpus()) == [0, 1, 2]


@pytest.mark.parametrize(("processes", "count"), [(4, 6), (4, 2), (2, 0)])
def test_gpus_that_cannot_be_shared_equally_are_refused_before_anything_is_loaded(
    processes: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _launched(monkeypatch, 0, processes, count)
    config = compose("demo-easy", ["model.device_map=auto", "device=cuda"])
    with pytest.raises(ConfigError, match=f"its {processes} processes, but there are {count} GPUs: start torchrun"):
        train(config, Console(quiet=True))


@pytest.mark.parametrize(("rank", "count", "own"), [(1, 8, 1), (3, 8, 3), (3, 6, 3), (3, 2, 1)])
def test_a_process_computes_on_the_gpu_of_its_local_rank(
    rank: int, count: int, own: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _launched(monkeypatch, rank, 4, count)
    assert find_device(_device_of("demo-easy", "device=cuda")) == torch.device("cuda", own)


@pytest.mark.parametrize(("device", "first"), [("auto", 6), ("cuda", 6), ("cuda:1", 1)])
def test_under_a_device_map_a_process_computes_on_the_first_gpu_of_its_share(
    device: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _launched(monkeypatch, 3, 4, 8)
    overrides = [f"device={device}", "model.device_map=auto"]
    assert find_device(_device_of("demo-easy", *overrides)) == torch.device("cuda", first)


@pytest.mark.parametrize("device_map", ["auto", "sequential"])
def test_a_process_spreads_its_layers_over_its_own_gpus(device_map: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The map is computed as by Transformers, for a model without weights."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.integrations.accelerate import _get_device_map

    _launched(monkeypatch, 2, 4, 8)
    options = Placement(torch.device("cuda", 4), device_map).options
    assert options["device_map"] == device_map and {*options["max_memory"]} == {4, 5, "cpu"}
    with torch.device("meta"):
        config = AutoConfig.from_pretrained(resolve("starter-causal"))
        model = AutoModelForCausalLM.from_config(config)
    placed = _get_device_map(model, device_map, options["max_memory"], None)
    assert {*placed.values()} <= {4, 5} and (device_map == "sequential" or {*placed.values()} == {4, 5})


def test_an_explicit_map_is_left_as_it_is_for_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    _launched(monkeypatch, 0, 2, 4)
    explicit = Placement(torch.device("cuda", 0), {"": 3})
    assert explicit.options == {"device_map": {"": 3}}
