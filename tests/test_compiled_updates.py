"""Compiled updates on a CPU are those of the learner, but for rounding, and resume exactly."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from conftest import StopAt
from rl_training.algorithms import SAC, TD3, Learner
from rl_training.algorithms.stack import LearnerStack
from rl_training.config import parse_config
from rl_training.errors import ConfigError
from rl_training.runtime import compile_rule, compiled_updates
from rl_training.runtime.acceleration import accelerated_updates
from rl_training.runtime.compile_rule import compiles_updates, expected_updates
from rl_training.runtime.compiled_updates import CompiledUpdates, why_not_compiled
from rl_training.runtime.free_cores import UpdatesOnFreeCores, same_bits_with_two_threads
from rl_training.runtime.run import resume, train
from rl_training.runtime.settings import parse_run
from rl_training.types import Batch, SpaceSpec
from test_acceleration import CONTINUOUS, LEARNERS, Given, random_batch
from test_run_stack import assert_same, last_state

needs_compiler = pytest.mark.skipif(why_not_compiled() is not None, reason=str(why_not_compiled()))
GOALS = SpaceSpec(observation_dim=3, action_dim=2, goal_dim=2, reward_range=(-1.0, 0.0))
SMALL = {"hidden_sizes": [16, 16]}


@pytest.fixture
def recorded_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the parts of recordings as they are, without the seconds that the compiler takes."""
    from rl_training.runtime import update_program

    monkeypatch.setattr(update_program, "_FEWEST_OPERATIONS", 1_000_000)
    monkeypatch.setattr(compiled_updates, "why_not_compiled", lambda: None)


def pair(learner_type: type[Learner], spec: SpaceSpec, options: dict[str, Any]) -> tuple[Learner, Learner]:
    """Return two equal learners, the second of which asks to be compiled."""
    plain, compiled = (learner_type(spec, {**SMALL, **options}, seed=7) for _ in range(2))
    compiled.fuses_kernels = True
    return plain, compiled


def assert_close(one: Learner, other: Learner) -> None:
    for key, value in one.state_dict().items():
        torch.testing.assert_close(value, other.state_dict()[key], atol=1e-5, rtol=1e-4, msg=key)
    assert torch.equal(one.generator.get_state(), other.generator.get_state())
    assert one.update_count == other.update_count


def assert_same_updates(
    plain: Learner, compiled: Learner, updates: CompiledUpdates, seeds: range, **options: Any
) -> None:
    """Update both learners on the same batches, and compare them and their metrics."""
    for seed in seeds:
        batch = random_batch(plain.spec, "cpu", seed, **options)
        expected, found = plain.update(batch), updates.update(batch)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(value, found[name], atol=1e-5, rtol=1e-4, msg=name)
            assert not found[name].requires_grad
    assert_close(plain, compiled)


@pytest.mark.parametrize(("learner_type", "spec", "options"), LEARNERS)
def test_every_learner_can_be_recorded(recorded_only, learner_type, spec, options):
    plain, compiled = pair(learner_type, spec, options)
    updates = CompiledUpdates(compiled)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a learner that cannot be recorded says so
        assert_same_updates(plain, compiled, updates, range(12))
        assert_same_updates(plain, compiled, updates, range(12, 14), size=24, offline_rows=0)


@pytest.mark.slow
@needs_compiler
def test_compiled_updates_differ_by_rounding_only():
    plain, compiled = pair(SAC, GOALS, {"normalize_observations": True, "max_grad_norm": 1.0})
    for learner in (plain, compiled):
        learner.observe(random_batch(GOALS, "cpu", 99).observations)
    updates = CompiledUpdates(compiled)
    assert_same_updates(plain, compiled, updates, range(8))
    assert updates._works


@pytest.mark.slow
@needs_compiler
def test_the_number_of_threads_changes_no_bit():
    learner = SAC(GOALS, {"hidden_sizes": [256, 256]}, seed=1)
    learner.fuses_kernels = True
    updates = CompiledUpdates(learner)
    batch = random_batch(GOALS, "cpu", 0, size=256)
    updates.update(batch)
    assert same_bits_with_two_threads(learner, batch, updates.update)
    assert updates._works


@pytest.mark.slow
@needs_compiler
def test_a_run_resumes_exactly(tmp_path: Path, tiny_config) -> None:
    config = tiny_config(compile=True, total_timesteps=200, algo_kwargs={"backend": "sac"})
    whole = train(config)
    part = train(config, [StopAt(150)])
    resumed = resume(part.run_dir)
    assert_same(last_state(whole), last_state(resumed))


def test_learning_rates_and_bounds_that_change_are_followed(recorded_only):
    plain, compiled = pair(SAC, GOALS, {"critic_layer_norm": False})
    updates = CompiledUpdates(compiled)
    for number, bounds in enumerate([(0.1, 1.0), (0.3, 1.0), (0.7, 1.0)]):
        for learner in (plain, compiled):
            learner.set_reward_range(bounds)
            learner.scale_learning_rates(1.0 - number / 3)
        assert_same_updates(plain, compiled, updates, range(2 * number, 2 * number + 2))
        assert compiled.value_bounds == plain.value_bounds
    assert len(updates._programs) == 1  # bounds are inputs
    for learner in (plain, compiled):
        learner.set_reward_range(None)
    assert_same_updates(plain, compiled, updates, range(10, 12))
    assert len(updates._programs) == 2
    for learner in (plain, compiled):
        learner.set_reward_range((0.5, 1.0))
    assert_same_updates(plain, compiled, updates, range(12, 14))
    assert len(updates._programs) == 2


def test_a_learner_that_was_restored_goes_on_the_same(recorded_only):
    plain, compiled = pair(TD3, CONTINUOUS, {})
    updates = CompiledUpdates(compiled)
    assert_same_updates(plain, compiled, updates, range(3))
    before = {**compiled.training_state(), "module": {k: v.clone() for k, v in compiled.state_dict().items()}}
    _, again = pair(TD3, CONTINUOUS, {})
    again.load_training_state(before)
    assert_same_updates(plain, again, CompiledUpdates(again), range(3, 9))


def test_batches_in_another_order_of_memory_are_compiled_for(recorded_only):
    plain, compiled = pair(SAC, CONTINUOUS, {})
    updates = CompiledUpdates(compiled)
    assert_same_updates(plain, compiled, updates, range(2))
    batch = random_batch(CONTINUOUS, "cpu", 3)
    columns = batch._replace(observations=batch.observations.t().contiguous().t())
    updates.update(columns)
    plain.update(batch)
    assert len(updates._programs) == 2
    assert_close(plain, compiled)


def test_recording_leaves_the_learner_as_it_is(recorded_only):
    plain, compiled = pair(SAC, CONTINUOUS, {})
    CompiledUpdates(compiled).prepare(random_batch(CONTINUOUS, "cpu", 0))
    assert_close(plain, compiled)
    assert not any(optimizer.state for optimizer in compiled._optimizers.values())


@pytest.mark.parametrize("reason", ["no compiler", "it fails"])
def test_without_a_compiler_updates_run_as_they_are_written_and_say_so_once(monkeypatch, reason):
    def fail(*_: Any, **options: Any) -> None:
        raise RuntimeError("no header file")

    if reason == "no compiler":
        monkeypatch.setenv("CXX", "no-such-compiler")
    else:
        monkeypatch.setattr(compiled_updates, "why_not_compiled", lambda: None)
        monkeypatch.setattr("torch._inductor.compile", fail)
    plain, compiled = pair(SAC, CONTINUOUS, {})
    updates = CompiledUpdates(compiled)
    match = "not compiled and stay slower: .*(no-such-compiler|no header file)"
    with pytest.warns(UserWarning, match=match):
        first = updates.update(random_batch(CONTINUOUS, "cpu", 0))
    plain.update(random_batch(CONTINUOUS, "cpu", 0))
    assert "train/critic_loss" in first
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same_updates(plain, compiled, updates, range(1, 3))


class Counting(SAC):
    counted = 0

    def _update(self, batch: Batch) -> dict[str, torch.Tensor]:
        self.counted += 1
        return super()._update(batch)


class Drawing(SAC):
    def _update(self, batch: Batch) -> dict[str, torch.Tensor]:
        torch.bernoulli(batch.rewards.sigmoid(), generator=self.generator)
        return super()._update(batch)


class DrawingElsewhere(SAC):
    def _update(self, batch: Batch) -> dict[str, torch.Tensor]:
        return super()._update(batch._replace(rewards=batch.rewards + torch.randn(len(batch.rewards))))


class Hiding(SAC):
    def _update(self, batch: Batch) -> dict[str, torch.Tensor]:
        with disable_proxy_modes_tracing():
            hidden = self.log_alpha.detach().view(1)
        return {**super()._update(batch), "train/hidden": hidden.sum()}


@pytest.mark.parametrize(
    ("learner_type", "reason"),
    [
        (Counting, "changes counted, which is no tensor"),
        (Drawing, "distribution is a result of the update"),
        (DrawingElsewhere, "draws from another generator"),
        (Hiding, "was not recorded"),
    ],
)
def test_an_update_that_cannot_be_recorded_runs_as_it_is_written(recorded_only, learner_type, reason):
    plain, compiled = pair(learner_type, CONTINUOUS, {})
    batch = random_batch(CONTINUOUS, "cpu", 0)
    for learner in (plain, compiled):
        torch.manual_seed(0)
        learner.update(batch)
    updates = CompiledUpdates(compiled)
    torch.manual_seed(0)
    plain.update(batch)
    with pytest.warns(UserWarning, match=reason):
        updates.prepare(batch)
    torch.manual_seed(0)
    updates.update(batch)
    assert_close(plain, compiled)


def test_a_compiler_that_a_signal_ended_is_started_again(recorded_only, monkeypatch):
    compile_one, calls = CompiledUpdates._program_of, []

    def fail_once(updates: CompiledUpdates, batch: Batch) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("the compiler was killed")
        return compile_one(updates, batch)

    monkeypatch.setattr(CompiledUpdates, "_program_of", fail_once)
    plain, compiled = pair(SAC, CONTINUOUS, {})
    updates = CompiledUpdates(compiled)
    assert_same_updates(plain, compiled, updates, range(2))
    assert updates._works


def test_stacks_and_learners_that_do_not_ask_for_it_are_not_compiled(monkeypatch):
    monkeypatch.setattr(CompiledUpdates, "_compile", lambda *_: pytest.fail("compiled"))
    source = Given()
    source.batch = random_batch(CONTINUOUS, "cpu", 0)
    accelerated_updates(SAC(CONTINUOUS, SMALL), source, 32)()
    learners = [SAC(CONTINUOUS, SMALL, seed=seed) for seed in range(2)]
    for learner in learners:
        learner.fuses_kernels = True
    tensors = [None if x is None else torch.stack([x, x]) for x in (*source.batch[:5], source.batch.returns)]
    source.batch = Batch(*tensors)
    source.sample = lambda size: source.batch
    metrics = accelerated_updates(LearnerStack(learners), source, 32)()
    assert metrics["train/critic_loss"].shape == (2,)


def test_compiling_does_not_count_as_a_slow_update(recorded_only, monkeypatch):
    now, compile_one = [0.0], CompiledUpdates._compile

    def slowly(updates: CompiledUpdates, batch: Batch) -> Any:
        now[0] += 20.0
        return compile_one(updates, batch)

    monkeypatch.setattr(CompiledUpdates, "_compile", slowly)
    learner, source = SAC(CONTINUOUS, SMALL), Given()
    learner.fuses_kernels, source.batch = True, random_batch(CONTINUOUS, "cpu", 0)
    updates = UpdatesOnFreeCores(learner, source, 32, lambda: 0.0, lambda: now[0])
    updates.update()
    assert updates._with_one == 0.0
    assert now == [20.0]


# Which runs are compiled


def rule(
    monkeypatch: pytest.MonkeyPatch, device: str = "cpu", compiler: bool = True, runs: int = 1, **changes: Any
) -> bool:
    monkeypatch.setattr(compile_rule, "why_not_compiled", lambda: None if compiler else "there is none")
    config = parse_config({"algo": "sac", "env_id": "Pendulum-v1", "total_timesteps": 51_000, **changes})
    return compiles_updates(config, parse_run(config), torch.device(device), runs=runs)


def test_long_runs_on_a_cpu_are_compiled_by_default(monkeypatch):
    assert rule(monkeypatch)  # the first 1,000 steps are played at random
    assert not rule(monkeypatch, total_timesteps=50_999)
    assert not rule(monkeypatch, compiler=False)
    assert not rule(monkeypatch, compile=False)
    assert rule(monkeypatch, total_timesteps=2_000, compile=True)
    assert rule(monkeypatch, total_timesteps=2_000, compile=True, compiler=False)  # the first update warns
    assert rule(monkeypatch, total_timesteps=26_000, algo_kwargs={"gradient_updates_per_step": 2})
    assert not rule(monkeypatch, algo_kwargs={"max_updates": 49_999})


def test_on_cuda_all_runs_are_compiled_unless_they_say_otherwise(monkeypatch):
    assert rule(monkeypatch, "cuda", total_timesteps=2_000)
    assert rule(monkeypatch, "cuda", total_timesteps=2_000, compile=True)
    assert not rule(monkeypatch, "cuda", compile=False)


def test_a_share_of_offline_rows_that_changes_is_not_compiled_for(monkeypatch):
    options = {"algo_kwargs": {"offline_batch_ratio": {"kind": "linear"}}}
    assert not rule(monkeypatch, **options)
    with pytest.warns(UserWarning, match="no effect on a CPU while offline_batch_ratio changes"):
        assert not rule(monkeypatch, **options, compile=True)
    assert rule(monkeypatch, algo_kwargs={"offline_batch_ratio": 0.25})


def test_stacks_on_a_cpu_are_not_compiled(monkeypatch):
    assert not rule(monkeypatch, runs=2)
    with pytest.warns(UserWarning, match="no effect on a CPU in a stack of runs"):
        assert not rule(monkeypatch, runs=2, compile=True)
    assert rule(monkeypatch, "cuda", runs=2)


def test_updates_on_offline_data_count():
    values = {"algo": "sac", "env_id": "Pendulum-v1", "total_timesteps": 2_000}
    config = parse_config({**values, "algo_kwargs": {"offline_pretrain_updates": 500}})
    assert expected_updates(config, parse_run(config)) == 1_500
    offline = parse_config({"algo": "iql", "env_id": "Pendulum-v1", "total_timesteps": 700})
    assert expected_updates(offline, parse_run(offline)) == 700


@pytest.mark.parametrize("value", ["auto", True, False])
def test_configurations_say_how_to_compile(value):
    config = parse_config({"algo": "sac", "env_id": "Pendulum-v1", "total_timesteps": 10, "compile": value})
    assert config.compile is value or config.compile == "auto"
    with pytest.raises(ConfigError, match="compile"):
        parse_config({"algo": "sac", "env_id": "Pendulum-v1", "total_timesteps": 10, "compile": "maybe"})
