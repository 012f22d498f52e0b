"""A stack of learners does what its members would do one by one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_training.algorithms.base import Learner
from rl_training.algorithms.stack import LearnerStack
from rl_training.algorithms.table import ALGORITHMS
from rl_training.errors import ConfigError
from rl_training.types import Batch, SpaceSpec

CONTINUOUS = SpaceSpec(observation_dim=5, action_dim=2, goal_dim=2, reward_range=(-1.0, 0.0))
DISCRETE = SpaceSpec(observation_dim=5, action_dim=1, num_actions=3)
MEMBERS, ROWS = 3, 16

CASES = [
    (name, spec)
    for name, row in ALGORITHMS.items()
    for spec in (CONTINUOUS, DISCRETE)
    if not row.hindsight and row.learner.supports(spec)
]


def repeatable_noise(shape: Any, *more: Any, generator: Any = None, device: Any = None) -> Tensor:
    """Noise that depends on its shape only, so that a member of a stack and a single learner get the same."""
    size = tuple(shape) if not isinstance(shape, int) else (shape, *more)
    values = torch.arange(int(torch.Size(size).numel()), dtype=torch.float32)
    return ((values * 0.61803) % 1.0).reshape(size)


@pytest.fixture
def same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "randn", repeatable_noise)
    monkeypatch.setattr(torch, "rand", repeatable_noise)


def make_batch(spec: SpaceSpec, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    discrete = torch.randint(3, (MEMBERS, ROWS, 1), generator=generator).float()
    actions = discrete if spec.is_discrete else torch.tanh(normal(MEMBERS, ROWS, spec.action_dim))
    return Batch(
        observations=normal(MEMBERS, ROWS, spec.policy_dim),
        actions=actions,
        rewards=-(normal(MEMBERS, ROWS) > 0).float(),
        next_observations=normal(MEMBERS, ROWS, spec.policy_dim),
        terminated=(normal(MEMBERS, ROWS) > 1).float(),
        offline_rows=ROWS // 2,
    )


def of_member(batch: Batch, member: int) -> Batch:
    return Batch(*(value[member] if isinstance(value, Tensor) else value for value in batch))


def learners(name: str, spec: SpaceSpec, settings: list[dict[str, Any]] | None = None) -> list[Learner]:
    row = ALGORITHMS[name]
    base = {"hidden_sizes": [16, 16], "normalize_observations": True}
    own = settings or [{}] * MEMBERS
    return [row.learner(spec, {**base, **own[i]}, seed=i) for i in range(MEMBERS)]


def compare(stack: LearnerStack, single: list[Learner], batches: list[Batch]) -> None:
    for batch in batches:
        metrics = stack.update(batch)
        for index, learner in enumerate(single):
            for key, value in learner.update(of_member(batch, index)).items():
                torch.testing.assert_close(metrics[key][index], value, rtol=1e-4, atol=1e-5, msg=key)
    for member, learner in zip(stack.members, single, strict=True):
        ours, theirs = member.training_state(), learner.training_state()
        assert ours["update_count"] == theirs["update_count"]
        for key, value in theirs["module"].items():
            torch.testing.assert_close(ours["module"][key], value, rtol=1e-4, atol=2e-5, msg=key)
        for key, moments in theirs["optimizers"].items():
            for index, values in moments.items():
                for name, value in values.items():
                    torch.testing.assert_close(ours["optimizers"][key][index][name], value, rtol=1e-3, atol=1e-5)


@pytest.mark.usefixtures("same_noise")
@pytest.mark.parametrize(("name", "spec"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_stack_equals_its_members_one_by_one(name: str, spec: SpaceSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    single = learners(name, spec)
    stack = LearnerStack([copy.deepcopy(learner) for learner in single])
    monkeypatch.undo()
    batches = [make_batch(spec, seed) for seed in range(4)]
    monkeypatch.setattr(torch, "randn", repeatable_noise)
    monkeypatch.setattr(torch, "rand", repeatable_noise)
    observations = batches[0].observations
    stack.observe(observations)
    for index, learner in enumerate(single):
        learner.observe(observations[index])
    compare(stack, single, batches)
    actions = stack.act(observations)
    for index, learner in enumerate(single):
        torch.testing.assert_close(actions[index], learner.act(observations[index]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sac", {"learning_rate": [1e-3, 1e-4, 3e-4]}),
        ("sac", {"gamma": [0.9, 0.95, 0.99], "tau": [0.1, 0.01, 0.5], "initial_alpha": [1.0, 0.1, 0.2]}),
        ("sac", {"target_entropy": [0.0, -1.0, -2.0], "bc_weight": [0.1, 1.0, 2.0]}),
        ("sac", {"entropy_per_action": [2.0, -1.0, -5.0], "learning_rate": [1e-2, 1e-2, 1e-2]}),
        ("td3", {"target_noise": [0.1, 0.2, 0.3], "saturation_penalty": [0.1, 0.2, 0.3], "policy_delay": [1, 1, 1]}),
        ("td3_bc", {"bc_alpha": [1.0, 2.0, 3.0], "max_grad_norm": [0.01, 0.1, 1.0], "critic_lr": [1e-4, 1e-3, 1e-2]}),
        ("iql", {"expectile": [0.6, 0.7, 0.9], "temperature": [1.0, 2.0, 3.0], "max_weight": [2.0, 3.0, 100.0]}),
        ("awac", {"awac_lambda": [0.3, 1.0, 2.0]}),
        ("cql", {"cql_alpha": [1.0, 2.0, 5.0]}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_members_may_differ_in_their_numbers(
    name: str, settings: dict[str, list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [{key: values[index] for key, values in settings.items()} for index in range(MEMBERS)]
    single = learners(name, CONTINUOUS, own)
    batches = [make_batch(CONTINUOUS, seed) for seed in range(4)]
    monkeypatch.setattr(torch, "randn", repeatable_noise)
    monkeypatch.setattr(torch, "rand", repeatable_noise)
    stack = LearnerStack([copy.deepcopy(learner) for learner in single])
    compare(stack, single, batches)
    weights = [dict(member.named_parameters()) for member in stack.members]
    alike = [name for name in weights[0] if all(torch.equal(weights[0][name], other[name]) for other in weights[1:])]
    assert alike == [name for name in alike if name in ("log_alpha", "log_cql_alpha", "model.actor.log_std")]


def test_members_of_another_shape_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"policy_delay = \[1, 2, 1\]: members of a stack must have the same"):
        LearnerStack(learners("td3", CONTINUOUS, [{"policy_delay": delay} for delay in (1, 2, 1)]))
    with pytest.raises(ConfigError, match="imitates"):
        LearnerStack(learners("sac", CONTINUOUS, [{"bc_weight": weight} for weight in (0.0, 1.0, 1.0)]))


def test_learning_rates_of_members_follow_one_schedule() -> None:
    stack = LearnerStack(learners("td3", CONTINUOUS, [{"learning_rate": rate} for rate in (0.1, 0.2, 0.4)]))
    stack.scale_learning_rates(0.5)
    rates = stack._pattern._optimizers["actor"].param_groups[0]["lr"]
    torch.testing.assert_close(rates, torch.tensor([0.05, 0.1, 0.2]))


def test_a_member_that_diverges_leaves_the_others_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    single = learners("sac", CONTINUOUS)
    stack = LearnerStack([copy.deepcopy(learner) for learner in single])
    batches = [make_batch(CONTINUOUS, seed) for seed in range(3)]
    monkeypatch.setattr(torch, "randn", repeatable_noise)
    for batch in batches:
        broken = batch.rewards.clone()
        broken[1] = torch.nan
        stack.update(batch._replace(rewards=broken))
        for index in (0, 2):
            single[index].update(of_member(batch, index))
    for index in (0, 2):
        for key, value in single[index].state_dict().items():
            torch.testing.assert_close(stack.members[index].state_dict()[key], value, rtol=1e-4, atol=2e-5, msg=key)
    assert stack.members[1].state_dict()["model.critic.mlp.output.weight"].isnan().any()


@pytest.mark.parametrize("name", ["sac", "td3", "redq", "cql"])
def test_a_stack_continues_exactly_from_the_states_of_its_members(name: str) -> None:
    batches = [make_batch(CONTINUOUS, seed) for seed in range(6)]
    stack = LearnerStack(learners(name, CONTINUOUS))
    for batch in batches[:3]:
        stack.update(batch)
    states = [copy.deepcopy(member.training_state()) for member in stack.members]
    other = LearnerStack(learners(name, CONTINUOUS))
    for member, state in zip(other.members, states, strict=True):
        member.load_training_state(state)
    other.refresh()
    for batch in batches[3:]:
        stack.update(batch)
        other.update(batch)
    for ours, theirs in zip(stack.members, other.members, strict=True):
        for key, value in ours.state_dict().items():
            assert torch.equal(value, theirs.state_dict()[key]), key


def test_members_draw_different_noise() -> None:
    stack = LearnerStack(learners("sac", CONTINUOUS))
    for member in stack.members[1:]:
        member.load_state_dict(stack.members[0].state_dict())
    actions = stack.act(torch.zeros(MEMBERS, 4, CONTINUOUS.policy_dim), deterministic=False)
    assert not torch.allclose(actions[0], actions[1])
    assert not torch.allclose(actions[1], actions[2])
