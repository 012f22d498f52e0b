"""Products by oneDNN: where they are used, that they are as exact as float32, and that the setting is restored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rl_training.algorithms import SAC
from rl_training.algorithms.stack import LearnerStack
from rl_training.models import cpu_products
from rl_training.models.cpu_products import fast_products, largest_error_of_onednn, onednn_is_better
from rl_training.types import Batch, SpaceSpec

SPEC = SpaceSpec(observation_dim=8, action_dim=2)
CPU = torch.device("cpu")

needs_setting = pytest.mark.skipif(
    not hasattr(torch._C, "_set_fp32_precision_setter"), reason="this PyTorch cannot choose the library of products"
)


def setting() -> str:
    return str(torch._C._get_fp32_precision_getter("mkldnn", "matmul"))


@pytest.fixture
def fresh() -> Iterator[None]:
    """Decide anew in this test, and forget the decision afterwards."""
    onednn_is_better.cache_clear()
    yield
    onednn_is_better.cache_clear()


@pytest.fixture
def amd(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    """A processor on which oneDNN is better, whatever this machine has."""
    monkeypatch.setattr(cpu_products, "_processor_is_amd", lambda: True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(cpu_products, "largest_error_of_onednn", lambda: 1e-7)


@needs_setting
def test_the_setting_holds_inside_and_is_restored(amd: None) -> None:
    before = setting()
    with fast_products(CPU):
        assert setting() == "bf16"
    assert setting() == before
    with pytest.raises(KeyError), fast_products(CPU):
        raise KeyError
    assert setting() == before
    with fast_products(torch.device("cuda")):
        assert setting() == before


@needs_setting
def test_an_update_uses_it_and_acting_does_not(amd: None, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, seen = SAC(SPEC, {"hidden_sizes": [8]}), list[str]()
    monkeypatch.setattr(learner, "_update", lambda batch: seen.append(setting()) or {})
    monkeypatch.setattr(learner, "_act", lambda observations, deterministic: seen.append(setting()))
    rows = torch.zeros(4, 8)
    learner.update(Batch(rows, torch.zeros(4, 2), torch.zeros(4), rows, torch.zeros(4)))
    learner.act(rows)
    assert seen == ["bf16", setting()]
    assert setting() != "bf16"


@needs_setting
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("_processor_is_amd", lambda: False),
        ("largest_error_of_onednn", lambda: 4e-3),  # a processor that does round to bfloat16
    ],
)
def test_it_is_not_used_if_that_gains_nothing_or_loses_precision(
    amd: None, monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    assert onednn_is_better()
    onednn_is_better.cache_clear()
    monkeypatch.setattr(cpu_products, name, value)
    assert not onednn_is_better()


def test_a_processor_without_avx512_keeps_the_default(amd: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert not onednn_is_better()


@needs_setting
def test_the_error_is_that_of_the_products_as_they_would_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial is made with the setting on: products that are rounded to bfloat16 show up in it."""
    real = torch.bmm
    used = list[str]()

    def rounded(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        used.append(setting())
        return real(left.bfloat16(), right.bfloat16()).float()

    monkeypatch.setattr(torch, "bmm", rounded)
    assert largest_error_of_onednn() > 1e-4
    assert used == ["bf16"]
    assert setting() != "bf16"


@pytest.mark.skipif(not onednn_is_better(), reason="this processor keeps PyTorch's default library")
def test_updates_differ_from_the_default_by_rounding_alone(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    generator = torch.Generator().manual_seed(0)
    rows, actions, rewards = (torch.randn(64, size, generator=generator) for size in (8, 2, 1))
    batch = Batch(rows, actions.tanh(), rewards[:, 0], rows.flip(0), torch.zeros(64))
    weights = []
    for better in (True, False):
        monkeypatch.setattr(cpu_products, "onednn_is_better", lambda better=better: better)
        learner = SAC(SPEC, {"hidden_sizes": [64, 64]})
        for _ in range(5):
            learner.update(batch)
        weights.append(torch.cat([parameter.detach().flatten() for parameter in learner.parameters()]))
    assert not torch.equal(*weights)  # another library: the rounding shows that it was used
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-5)


def test_the_first_update_of_a_process_may_be_that_of_a_stack(fresh: None) -> None:
    stack = LearnerStack([SAC(SPEC, {"hidden_sizes": [8]}, seed=seed) for seed in range(2)])
    rows = torch.zeros(2, 4, 8)
    metrics = stack.update(Batch(rows, torch.zeros(2, 4, 2), torch.zeros(2, 4), rows, torch.zeros(2, 4)))
    assert metrics["train/critic_loss"].shape == (2,)


def test_a_system_without_a_list_of_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert not cpu_products._processor_is_amd()
