"""Compiled functions give the results of the functions as written, with and without a member axis."""

from __future__ import annotations

import contextlib
import os
import warnings

import pytest
import torch

from rl_training.algorithms.stack import LearnerStack
from rl_training.algorithms.table import ALGORITHMS
from rl_training.fusing import fused, fused_kernels, keep_compiled_code_private, why_not_fused
from rl_training.types import Batch, SpaceSpec

SPEC = SpaceSpec(observation_dim=3, action_dim=2, goal_dim=2, reward_range=(-1.0, 0.0))
TRACED = "aot_eager"  # traces and differentiates like the compiler, and runs the operations one by one
COMPILED: list[str] = []


def counting(graph, inputs):
    """Run the operations one by one, and note that a function was compiled."""
    COMPILED.append("once")
    return graph.forward


def failing(graph, inputs):
    """Fail, as a compiler does on a machine that lacks a part."""
    raise RuntimeError("no compiler here")


@pytest.fixture(scope="module", autouse=True)
def backends():
    """Register the two compilers. The import takes seconds, so only processes that run these tests make it."""
    import torch._dynamo

    for backend in (counting, failing):
        if backend.__name__ not in torch._dynamo.list_backends(exclude_tags=()):
            torch._dynamo.register_backend(backend)


def random_batch(seed: int, members: int | None = None, size: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    first = [] if members is None else [members]

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*first, *shape, generator=generator)

    rewards, terminated = -(draw(size) > 0).float(), (draw(size) > 1).float()
    return Batch(draw(size, 5), draw(size, 2).clamp(-1, 1), rewards, draw(size, 5), terminated)


@pytest.mark.parametrize(("name", "members"), [("sac", 2), ("td3", None)])
def test_a_compiled_update_is_that_of_the_learner(name, members):
    weights = []
    for context in (contextlib.nullcontext(), fused_kernels(TRACED)):
        options = {"hidden_sizes": [8, 8], "normalize_observations": True, "gamma": 0.9}
        learners = [ALGORITHMS[name].learner(SPEC, options, seed=seed) for seed in range(members or 1)]
        whole = learners[0] if members is None else LearnerStack(learners)
        with context:
            for seed in range(3):
                whole.update(random_batch(seed, members))
        weights.append(torch.cat([p.detach().flatten() for learner in learners for p in learner.parameters()]))
    assert torch.equal(*weights)


def test_outside_the_context_nothing_is_compiled(monkeypatch):
    @fused
    def double(x, factor):
        return x * factor

    monkeypatch.setattr("rl_training.fusing._compile", lambda *_: pytest.fail("compiled"))
    with fused_kernels("counting"):
        pass
    assert torch.equal(double(torch.ones(3), 2.0), torch.full((3,), 2.0))


def test_a_function_is_compiled_once_for_each_form():
    @fused
    def double(x, factor):
        return x * factor

    COMPILED.clear()
    x = torch.arange(3.0)
    with fused_kernels("counting"):
        for _ in range(3):
            assert torch.equal(double(x, 2.0), 2 * x)
        assert len(COMPILED) == 1
        for _ in range(2):
            found = torch.func.vmap(lambda row: double(row, 2.0))(torch.ones(4, 3))
        assert torch.equal(found, torch.full((4, 3), 2.0))
        assert len(COMPILED) == 2
        assert torch.equal(double(x, factor=2.0), 2 * x)  # a keyword is not lost


def test_the_form_of_a_sum_is_not_chosen_by_its_time(monkeypatch):
    @fused
    def total(x):
        return x.sum()

    given = []
    monkeypatch.setattr(torch, "compile", lambda function, **options: given.append(options) or function)
    with fused_kernels():
        total(torch.ones(3))
    from torch._inductor import config

    known = hasattr(config, "deterministic")
    assert [options["options"] for options in given] == [{"deterministic": True} if known else {}]


def test_members_see_their_own_part_wherever_their_axis_is():
    @fused
    def scaled_sum(x, scale):
        return (x * scale).sum(), x.amax()

    x, scales = torch.arange(12.0).view(4, 3), torch.tensor([1.0, 10.0, 100.0])

    def of_one(column, scale):
        return scaled_sum(column, scale)

    plain = torch.func.vmap(of_one, in_dims=(1, 0))(x, scales)
    with fused_kernels(TRACED):
        found = torch.func.vmap(of_one, in_dims=(1, 0))(x, scales)
    assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))
    assert torch.equal(found[0], x.sum(0) * scales)


def test_a_function_that_cannot_be_compiled_still_runs_and_says_so():
    @fused
    def triple(x):
        return 3 * x

    with fused_kernels("failing"):
        with pytest.warns(UserWarning, match="not compiled and stays slower.*no compiler here"):
            assert torch.equal(triple(torch.ones(2)), torch.full((2,), 3.0))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it is not tried again
            assert torch.equal(triple(torch.ones(2)), torch.full((2,), 3.0))


def test_a_function_that_cannot_be_traced_still_runs_and_says_so():
    @fused
    def branching(x):
        return x + 1 if x.sum() > 0 else x - 1

    with fused_kernels(TRACED), pytest.warns(UserWarning, match="not compiled and stays slower"):
        assert torch.equal(branching(torch.ones(2)), torch.full((2,), 2.0))


def test_fixed_critics_get_no_gradient_but_their_input_does():
    critic = ALGORITHMS["sac"].learner(SPEC, {"hidden_sizes": [8]}).model.critic
    observations, actions = torch.ones(4, 5), torch.zeros(4, 2, requires_grad=True)
    free = critic(observations, actions).sum()
    fixed = critic(observations, actions, fixed=True).sum()
    assert torch.equal(free, fixed)
    parameters = list(critic.parameters())
    expected, *_ = torch.autograd.grad(free, [actions, *parameters])
    found, *rest = torch.autograd.grad(fixed, [actions, *parameters], allow_unused=True)
    assert torch.equal(found, expected)
    assert all(gradient is None for gradient in rest)


def test_only_cuda_is_compiled_for():
    assert why_not_fused(torch.device("cpu")) == "the device is cpu: expected cuda"


@pytest.mark.parametrize("given", [True, False])
def test_compiled_code_is_kept_where_only_its_user_can_write(tmp_path, monkeypatch, given):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "elsewhere")  # monkeypatch restores it afterwards
    if not given:
        monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    keep_compiled_code_private()
    folder = tmp_path / "cache" / "rl_training" / "compiled"
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == ("elsewhere" if given else str(folder))
    assert given or folder.stat().st_mode & 0o777 == 0o700


def test_without_a_writable_folder_pytorch_chooses(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "elsewhere")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    keep_compiled_code_private()
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
