"""Recorded updates are the updates: on the CPU the same function, on CUDA the same weights, bit for bit."""

from __future__ import annotations

import pytest
import torch

from rl_training.algorithms import AWAC, BC, CQL, DDPG, DQN, IQL, RLPD, SAC, TD3, TD3BC, Learner
from rl_training.runtime.acceleration import _MOST_GRAPHS, accelerated_update
from rl_training.types import Batch, SpaceSpec

CONTINUOUS = SpaceSpec(observation_dim=3, action_dim=2)
DISCRETE = SpaceSpec(observation_dim=3, action_dim=1, num_actions=4)
SMALL = {"hidden_sizes": [16, 16]}


def needs_cuda(test):
    """Mark a test as one of CUDA's, skipped where there is no such device."""
    return pytest.mark.gpu(pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")(test))


LEARNERS = [
    pytest.param(TD3, CONTINUOUS, {}, id="td3"),
    pytest.param(TD3, CONTINUOUS, {"bc_weight": 1.0, "max_grad_norm": 1.0}, id="td3-demonstrations"),
    pytest.param(SAC, CONTINUOUS, {"normalize_observations": True}, id="sac-normalised"),
    pytest.param(RLPD, CONTINUOUS, {"policy_delay": 3}, id="rlpd"),
    pytest.param(IQL, CONTINUOUS, {}, id="iql"),
    pytest.param(AWAC, CONTINUOUS, {}, id="awac"),
    pytest.param(CQL, CONTINUOUS, {"calibrated": True, "bc_updates": 9, "cql_actions": 3}, id="cal-ql"),
    pytest.param(CQL, CONTINUOUS, {"lagrange": 1.0, "cql_actions": 3}, id="cql-lagrange"),
    pytest.param(TD3BC, CONTINUOUS, {}, id="td3_bc"),
    pytest.param(DQN, DISCRETE, {}, id="dqn"),
    pytest.param(BC, CONTINUOUS, {"policy": "gaussian"}, id="bc"),
]


def random_batch(spec: SpaceSpec, device: str, seed: int, size: int = 32, offline_rows: int = 16) -> Batch:
    g = torch.Generator().manual_seed(seed)
    actions = torch.rand(size, spec.action_dim, generator=g) * 2 - 1
    if spec.num_actions is not None:
        actions = torch.randint(spec.num_actions, (size, 1), generator=g).float()
    tensors = (
        torch.randn(size, spec.policy_dim, generator=g),
        actions,
        -torch.rand(size, generator=g),
        torch.randn(size, spec.policy_dim, generator=g),
        (torch.rand(size, generator=g) < 0.2).float(),
        -torch.rand(size, generator=g) * 10,
    )
    return Batch(*(tensor.to(device) for tensor in tensors), offline_rows=offline_rows)


@pytest.mark.parametrize(("learner_type", "spec", "options"), LEARNERS)
def test_on_the_cpu_it_is_the_learners_own_update(learner_type, spec, options):
    learner = learner_type(spec, SMALL | options)
    assert accelerated_update(learner) == learner.update


def moves_actor(learner: Learner, batch: Batch) -> bool:
    before = {name: value.clone() for name, value in learner.state_dict().items() if "model.actor" in name}
    learner.update(batch)
    after = learner.state_dict()
    return any(not torch.equal(value, after[name]) for name, value in before.items())


@pytest.mark.parametrize(
    ("learner_type", "options", "delay"),
    [
        (DDPG, {}, 1),
        (TD3, {}, 2),
        (TD3, {"policy_delay": 3}, 3),
        (SAC, {"policy_delay": 4}, 4),
        (RLPD, {"policy_delay": 3}, 3),
        (IQL, {"policy_delay": 2}, 2),
        (AWAC, {"policy_delay": 2}, 2),
        (TD3BC, {}, 2),
        (CQL, {"policy_delay": 2, "cql_actions": 2}, 2),
    ],
)
def test_the_phase_tells_apart_updates_that_move_the_actor(learner_type, options, delay):
    learner = learner_type(CONTINUOUS, SMALL | options)
    seen: dict[object, set[bool]] = {}
    moved = []
    for seed in range(2 * delay + 2):
        phase = learner.update_kind
        hash(phase)
        moved.append(moves_actor(learner, random_batch(CONTINUOUS, "cpu", seed)))
        seen.setdefault(phase, set()).add(moved[-1])
    assert moved == [(update + 1) % delay == 0 for update in range(len(moved))]
    assert all(len(outcomes) == 1 for outcomes in seen.values())  # a phase does one thing
    assert len(seen) == (1 if delay == 1 else 2)  # and there are no more phases than needed


def test_cloning_is_a_phase_of_its_own():
    learner = CQL(CONTINUOUS, SMALL | {"bc_updates": 2, "cql_actions": 2})
    phases = []
    for seed in range(4):
        phases.append(learner.update_kind)
        learner.update(random_batch(CONTINUOUS, "cpu", seed))
    assert phases[0] == phases[1]
    assert phases[2] == phases[3]
    assert phases[1] != phases[2]


@pytest.mark.parametrize(("learner_type", "spec"), [(DQN, DISCRETE), (BC, CONTINUOUS)])
def test_learners_without_a_delay_have_one_phase(learner_type, spec):
    learner = learner_type(spec, SMALL)
    phases = set()
    for seed in range(4):
        phases.add(learner.update_kind)
        learner.update(random_batch(spec, "cpu", seed))
    assert len(phases) == 1


# On CUDA


def pair(learner_type, spec: SpaceSpec, options: dict) -> tuple[Learner, Learner]:
    both = tuple(learner_type(spec, SMALL | options, device="cuda", seed=1) for _ in range(2))
    for learner in both:
        learner.observe(torch.randn(50, spec.policy_dim, generator=torch.Generator().manual_seed(0)).cuda())
    return both


def assert_same(first: Learner, second: Learner) -> None:
    torch.cuda.synchronize()
    a, b = first.state_dict(), second.state_dict()
    assert [name for name, value in a.items() if not torch.equal(value, b[name])] == []
    assert first.update_count == second.update_count
    assert torch.equal(first.generator.get_state(), second.generator.get_state())
    for name, moments in first.training_state()["optimizers"].items():
        others = second.training_state()["optimizers"][name]
        for index, values in moments.items():
            assert all(torch.equal(value, others[index][key]) for key, value in values.items()), name


@needs_cuda
@pytest.mark.parametrize(("learner_type", "spec", "options"), LEARNERS)
def test_recorded_updates_give_the_same_weights(learner_type, spec, options):
    plain, recorded = pair(learner_type, spec, options)
    update = accelerated_update(recorded)
    assert update != recorded.update
    for seed in range(24):
        batch = random_batch(spec, "cuda", seed)
        expected = {name: value.clone() for name, value in plain.update(batch).items()}
        found = update(batch)
        assert found.keys() == expected.keys()
        assert all(torch.equal(value, found[name]) for name, value in expected.items()), seed
    assert_same(plain, recorded)
    assert update.__self__._works
    assert len(update.__self__._graphs) >= 1


@needs_cuda
def test_batches_of_every_form_have_their_own_graph():
    plain, recorded = pair(SAC, CONTINUOUS, {})
    update = accelerated_update(recorded)
    for seed in range(6 * (_MOST_GRAPHS + 4)):
        batch = random_batch(CONTINUOUS, "cuda", seed, offline_rows=seed % (_MOST_GRAPHS + 4))
        plain.update(batch)
        update(batch)
    assert len(update.__self__._graphs) == _MOST_GRAPHS
    for seed, size in enumerate([8, 16, 8, 16] * 4):
        batch = random_batch(CONTINUOUS, "cuda", seed, size, offline_rows=0)
        plain.update(batch)
        update(batch)
    assert_same(plain, recorded)


@needs_cuda
def test_a_learning_rate_that_changes_is_followed():
    plain, recorded = pair(TD3, CONTINUOUS, {})
    update = accelerated_update(recorded)
    for seed in range(20):
        for learner in (plain, recorded):
            learner.scale_learning_rates(1.0 - seed / 20)
        batch = random_batch(CONTINUOUS, "cuda", seed)
        plain.update(batch)
        update(batch)
    assert_same(plain, recorded)


@needs_cuda
def test_a_learner_that_was_restored_goes_on_the_same():
    plain, recorded = pair(RLPD, CONTINUOUS, {"policy_delay": 2})
    update = accelerated_update(recorded)
    for seed in range(12):
        batch = random_batch(CONTINUOUS, "cuda", seed)
        plain.update(batch)
        update(batch)
    again = RLPD(CONTINUOUS, SMALL | {"policy_delay": 2}, device="cuda", seed=7)
    again.load_training_state(recorded.training_state())
    update = accelerated_update(again)
    for seed in range(12, 24):
        batch = random_batch(CONTINUOUS, "cuda", seed)
        plain.update(batch)
        update(batch)
    assert_same(plain, again)
