"""Recorded updates are the updates: on the CPU the same function, on CUDA the same weights, bit for bit."""

from __future__ import annotations

import contextlib

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.algorithms import AWAC, BC, CQL, DDPG, DQN, IQL, RLPD, SAC, TD3, TD3BC, Learner
from rl_training.algorithms.stack import LearnerStack
from rl_training.algorithms.table import ALGORITHMS
from rl_training.data import HERReplayBuffer, ReplayBuffer
from rl_training.data.device_sampling import copy_without_waiting
from rl_training.data.mixture import Mixture, Source
from rl_training.envs import GoalRewards, space_spec
from rl_training.envs.play import play
from rl_training.runtime.acceleration import _MOST_GRAPHS, accelerated_updates
from rl_training.runtime.action_graphs import accelerated_actions
from rl_training.runtime.cuda_graphs import record_graph
from rl_training.runtime.run import resume, train
from rl_training.runtime.stack_data import DataStack
from rl_training.runtime.stack_runs import resume_stack, train_stack
from rl_training.types import Batch, Metrics, SpaceSpec

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


class Given:
    """A source whose next batch is given."""

    batch: Batch

    def sample(self, batch_size: int) -> Batch:
        assert len(self.batch.rewards) == batch_size
        return self.batch

    def device_sampler(self) -> None:
        return None


class Updates:
    """The accelerated updates of a learner, on given batches."""

    def __init__(self, learner: Learner, size: int = 32) -> None:
        self.source = Given()
        self.function = accelerated_updates(learner, self.source, size)

    @property
    def graphs(self) -> dict:
        return self.function.__self__._graphs

    def __call__(self, batch: Batch) -> Metrics:
        self.source.batch = batch
        return self.function()


@pytest.mark.parametrize(("learner_type", "spec", "options"), LEARNERS)
def test_on_the_cpu_it_is_the_learners_own_update(learner_type, spec, options):
    plain, accelerated = (learner_type(spec, SMALL | options) for _ in range(2))
    update = Updates(accelerated)
    for seed in range(3):
        batch = random_batch(spec, "cpu", seed)
        expected, found = plain.update(batch), update(batch)
        assert all(torch.equal(value, found[name]) for name, value in expected.items())
    assert all(torch.equal(value, accelerated.state_dict()[name]) for name, value in plain.state_dict().items())


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


def test_a_recording_ends_before_its_first_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a recording does to the generators on the device must not come after what a replay does."""
    calls: list[str] = []

    class Graph:
        def register_generator_state(self, generator: object) -> None:
            calls.append(f"register {generator}")

    @contextlib.contextmanager
    def recording(graph: Graph):
        calls.append("begin")
        yield
        calls.append("end")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", recording)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: calls.append(f"wait for {device}"))
    graph, result = record_graph(lambda: calls.append("call") or 7, ["a", "b"], "cuda:1")
    assert isinstance(graph, Graph)
    assert result == 7
    assert calls == ["register a", "register b", "begin", "call", "end", "wait for cuda:1"]


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
    update = Updates(recorded)
    for seed in range(24):
        batch = random_batch(spec, "cuda", seed)
        expected = {name: value.clone() for name, value in plain.update(batch).items()}
        found = update(batch)
        assert found.keys() == expected.keys()
        assert all(torch.equal(value, found[name]) for name, value in expected.items()), seed
    assert_same(plain, recorded)
    assert update.function.__self__._works
    assert len(update.graphs) >= 1


@needs_cuda
@pytest.mark.parametrize("name", ["sac", "td3"])
def test_compiled_kernels_change_the_weights_by_rounding_only(name):
    spec = filled("hindsight", "cpu").spec
    stacks = []
    for fuses in (False, True):
        learners = [ALGORITHMS[name].learner(spec, SMALL, device="cuda", seed=i) for i in range(2)]
        for learner in learners:
            learner.fuses_kernels = fuses
        stacks.append(LearnerStack(learners))
        update = accelerated_updates(stacks[-1], DataStack([filled("hindsight", "cuda", i) for i in range(2)]), 32)
        for _ in range(6):
            update()
        assert update.__self__._fuses is fuses
    for one, other in zip(stacks[0].members, stacks[1].members, strict=True):
        for key, value in one.state_dict().items():
            torch.testing.assert_close(value, other.state_dict()[key], atol=1e-4, rtol=1e-3)


@needs_cuda
def test_batches_of_every_form_have_their_own_graph():
    plain, recorded = pair(SAC, CONTINUOUS, {})
    update = Updates(recorded)
    for seed in range(6 * (_MOST_GRAPHS + 4)):
        batch = random_batch(CONTINUOUS, "cuda", seed, offline_rows=seed % (_MOST_GRAPHS + 4))
        plain.update(batch)
        update(batch)
    assert len(update.graphs) == _MOST_GRAPHS
    assert_same(plain, recorded)


@needs_cuda
def test_a_learning_rate_that_changes_is_followed():
    plain, recorded = pair(TD3, CONTINUOUS, {})
    update = Updates(recorded)
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
    update = Updates(recorded)
    for seed in range(12):
        batch = random_batch(CONTINUOUS, "cuda", seed)
        plain.update(batch)
        update(batch)
    again = RLPD(CONTINUOUS, SMALL | {"policy_delay": 2}, device="cuda", seed=7)
    again.load_training_state(recorded.training_state())
    update = Updates(again)
    for seed in range(12, 24):
        batch = random_batch(CONTINUOUS, "cuda", seed)
        plain.update(batch)
        update(batch)
    assert_same(plain, again)


# Data on the device


def filled(kind: str, device: str, seed: int = 0) -> Source:
    """Return a buffer with play of a goal task, or without its goals."""
    env = gym.make("rl_training/PointReach2D-v0")
    goals = GoalRewards(gym.make("rl_training/PointReach2D-v0"))
    spec = space_spec(env, goals)
    if kind == "hindsight":
        buffer = HERReplayBuffer(spec, 5_000, goals, device=device, seed=seed)
    else:
        buffer = ReplayBuffer(spec, 5_000, device=device, seed=seed)
    play_into(buffer, range(30))
    return buffer


def play_into(buffer: HERReplayBuffer | ReplayBuffer, seeds: range) -> None:
    env = gym.make("rl_training/PointReach2D-v0")
    env.action_space.seed(seeds.start)
    for step in play(env, lambda _: env.action_space.sample(), seeds):
        rows = [step.observation, step.action, step.reward, step.next_observation, step.terminated, step.truncated]
        batched = [
            {key: part[None] for key, part in row.items()} if isinstance(row, dict) else np.asarray([row])
            for row in rows
        ]
        buffer.add(*batched)


@needs_cuda
@pytest.mark.parametrize("kind", ["hindsight", "uniform"])
def test_recorded_sampling_gives_the_same_weights_and_sees_later_rows(kind):
    spec = filled(kind, "cpu").spec
    plain, recorded = (SAC(spec, SMALL | {"normalize_observations": True}, device="cuda") for _ in range(2))
    one, other = filled(kind, "cuda"), filled(kind, "cuda")
    update = accelerated_updates(recorded, other, 32)
    for number in range(40):
        if number in (10, 25):
            for buffer in (one, other):
                play_into(buffer, range(100 * number, 100 * number + 5))
        plain.update(one.sample(32))
        update()
    assert_same(plain, recorded)
    assert len(update.__self__._graphs) == 1
    assert update.__self__._graphs[next(iter(update.__self__._graphs))].inputs is None


@needs_cuda
def test_a_mixture_is_sampled_in_the_recording():
    spec = filled("uniform", "cpu").spec
    plain, recorded = (RLPD(spec, SMALL | {"policy_delay": 2}, device="cuda") for _ in range(2))
    one, other = (Mixture(filled("uniform", "cuda", 1), filled("uniform", "cuda", 2), 0.3) for _ in range(2))
    update = accelerated_updates(recorded, other, 32)
    for _ in range(40):
        plain.update(one.sample(32))
        update()
    assert_same(plain, recorded)


@needs_cuda
@pytest.mark.parametrize("name", ["sac", "td3", "iql", "cql"])
def test_a_recorded_stack_equals_the_same_stack_without_recording(name):
    spec = filled("hindsight", "cpu").spec
    rates = [1e-3, 1e-4, 3e-4]
    learner = ALGORITHMS[name].learner
    stacks = [
        LearnerStack([learner(spec, SMALL | {"learning_rate": rates[i]}, device="cuda", seed=i) for i in range(3)])
        for _ in range(2)
    ]
    data = [DataStack([filled("hindsight", "cuda", i) for i in range(3)]) for _ in range(2)]
    update = accelerated_updates(stacks[1], data[1], 32)
    for _ in range(20):
        sampler = data[0].device_sampler()
        stacks[0].update(sampler(32, data[0].plan(32)))
        update()
    for one, other in zip(stacks[0].members, stacks[1].members, strict=True):
        assert_same(one, other)
    assert update.__self__._works


@needs_cuda
@pytest.mark.parametrize("stacked", [False, True])
def test_recorded_actions_are_those_of_the_learner(stacked):
    def policy() -> SAC | LearnerStack:
        learners = [SAC(CONTINUOUS, {**SMALL, "normalize_observations": True}, device="cuda", seed=s) for s in (0, 1)]
        return LearnerStack(learners) if stacked else learners[0]

    shape = (2, 4, 3) if stacked else (4, 3)
    rng, recorded, eager = np.random.default_rng(0), policy(), policy()
    choose = accelerated_actions(recorded)
    for step in range(12):
        parts = [rng.normal(size=shape).astype(np.float32) for _ in range(2)]
        random = step in (0, 1, 2, 3, 4, 9)
        found = choose(parts, random)
        for part in parts:
            eager.observe(torch.from_numpy(part).cuda())
        if random:
            assert found is None
        else:
            expected = eager.act(torch.from_numpy(parts[0]).cuda(), deterministic=False).cpu().numpy()
            np.testing.assert_array_equal(found, expected)
    assert recorded.normalizer is not None
    assert eager.normalizer is not None
    assert torch.equal(recorded.normalizer.mean, eager.normalizer.mean)
    assert torch.equal(recorded.generator.get_state(), eager.generator.get_state())


@needs_cuda
def test_a_copy_to_a_busy_device_has_the_values_of_its_call():
    target, source = torch.zeros(1000, device="cuda"), torch.ones(1000)
    torch.cuda._sleep(200_000_000)  # a tenth of a second
    copy_without_waiting(target, source)
    source.fill_(2.0)
    assert target.sum().item() == 1000


@needs_cuda
def test_a_run_on_cuda_resumes_exactly(tmp_path):
    from test_run_stack import StopAt, configs, last_state
    from test_run_stack import assert_same as same

    options = {"device": "cuda", "algo_kwargs": {"backend": "sac"}}
    whole = train_stack(configs(tmp_path / "whole", **options))
    parts = train_stack(configs(tmp_path / "parts", **options), [StopAt(70)])
    resumed = resume_stack(parts[0].run_dir)
    for one, other in zip(whole, resumed, strict=True):
        same(last_state(one), last_state(other))
    (single,) = configs(tmp_path / "single", (5,), **options)
    complete = train(single)
    part = train(single.model_copy(update={"output_dir": tmp_path / "part"}), [StopAt(70)])
    same(last_state(complete), last_state(resume(part.run_dir)))
