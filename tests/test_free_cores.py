"""A second core for updates while it is idle: when it is used, when it is given up, and that results stay the same."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from rl_training.algorithms import SAC
from rl_training.data import ReplayBuffer
from rl_training.models.mlp import layer_norm
from rl_training.runtime import free_cores
from rl_training.runtime.free_cores import UpdatesOnFreeCores, same_bits_with_two_threads
from rl_training.types import Batch, Metrics, SpaceSpec

SPEC = SpaceSpec(observation_dim=8, action_dim=2)


def filled_buffer() -> ReplayBuffer:
    rng, buffer = np.random.default_rng(0), ReplayBuffer(SPEC, 100)
    columns = rng.normal(size=(100, 8)), rng.uniform(-1, 1, (100, 2)), rng.normal(size=100), rng.normal(size=(100, 8))
    buffer.add(*columns, np.zeros(100, bool), np.zeros(100, bool))
    return buffer


def weights(learner: SAC) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in learner.parameters()])


class Machine:
    """A clock and idle cores under the test's control; each update takes the time of its number of threads."""

    def __init__(self, learner: SAC) -> None:
        self.now, self.free, self.seconds, self.used = 0.0, 1.0, {1: 1.0, 2: 0.6}, list[int]()

        def update(batch: Batch) -> Metrics:
            self.used.append(torch.get_num_threads())
            self.now += self.seconds[self.used[-1]]
            return {}

        learner.update = update  # type: ignore[method-assign]

    def clock(self) -> float:
        return self.now

    def idle_seconds(self) -> float:
        return self.free * self.now


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> tuple[Machine, UpdatesOnFreeCores]:
    monkeypatch.setattr(free_cores, "same_bits_with_two_threads", lambda *_: True)
    torch.set_num_threads(1)
    learner = SAC(SPEC, {"hidden_sizes": [8]})
    machine = Machine(learner)
    return machine, UpdatesOnFreeCores(learner, filled_buffer(), 16, machine.idle_seconds, machine.clock)


def run(updates: UpdatesOnFreeCores, count: int) -> None:
    for _ in range(count):
        updates.update()


def test_a_second_thread_is_used_once_a_core_was_idle(machine: tuple[Machine, UpdatesOnFreeCores]) -> None:
    here, updates = machine
    run(updates, 5)
    assert here.used == [1, 1, 2, 2, 2]
    assert torch.get_num_threads() == 1  # acting and evaluation keep one thread


def test_idle_time_from_before_a_pause_does_not_count(machine: tuple[Machine, UpdatesOnFreeCores]) -> None:
    here, updates = machine
    run(updates, 1)
    here.now += 60.0  # an evaluation
    run(updates, 4)
    assert here.used == [1, 1, 1, 2, 2]


def test_one_thread_stays_while_no_core_is_idle(machine: tuple[Machine, UpdatesOnFreeCores]) -> None:
    here, updates = machine
    here.free = 0.3
    run(updates, 100)
    assert set(here.used) == {1}


def test_an_update_that_waits_long_ends_the_use_of_two_threads(machine: tuple[Machine, UpdatesOnFreeCores]) -> None:
    here, updates = machine
    run(updates, 5)
    here.seconds[2], here.free = 60.0, 0.0  # another process takes the core
    run(updates, 50)
    assert here.used[5:] == [2] + [1] * 49


def test_updates_at_twice_their_time_end_the_use_of_two_threads_after_a_few(
    machine: tuple[Machine, UpdatesOnFreeCores],
) -> None:
    here, updates = machine
    run(updates, 3)
    here.seconds[2], here.free = 2.0, 0.0
    run(updates, 50)
    assert 5 <= here.used[3:].count(2) < 10


def test_one_update_that_was_interrupted_does_not_end_the_use_of_two_threads(
    machine: tuple[Machine, UpdatesOnFreeCores],
) -> None:
    here, updates = machine
    run(updates, 5)
    here.seconds[2] = 4.0
    run(updates, 1)
    here.seconds[2] = 0.6
    run(updates, 100)
    assert set(here.used[2:]) == {2}


def test_two_threads_that_are_not_faster_are_given_up_and_tried_less_and_less(
    machine: tuple[Machine, UpdatesOnFreeCores],
) -> None:
    here, updates = machine
    here.seconds[2] = 1.1
    run(updates, 1_000)
    first, last = here.used[:200].count(2), here.used[-200:].count(2)
    assert 0 < last < first


def test_two_threads_are_never_used_if_they_change_the_results(
    machine: tuple[Machine, UpdatesOnFreeCores], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, updates = machine
    trials = []
    monkeypatch.setattr(free_cores, "same_bits_with_two_threads", lambda *_: trials.append(1) is not None)
    run(updates, 200)
    assert set(here.used) == {1}
    assert len(trials) == 1  # one trial is enough


def test_a_run_gives_the_same_weights_with_and_without_free_cores() -> None:
    torch.set_num_threads(1)
    results = []
    for free in (0.0, 1.0):
        learner, now = SAC(SPEC, {"hidden_sizes": [128, 128]}, seed=3), [0.0]

        def clock(now: list[float] = now) -> float:
            now[0] += 0.2
            return now[0]

        updates = UpdatesOnFreeCores(learner, filled_buffer(), 64, lambda n=now, f=free: n[0] * f, clock)
        run(updates, 6)
        assert updates.threads == (2 if free else 1)
        results.append(weights(learner))
    assert torch.equal(*results)


def test_the_trial_leaves_the_learner_as_it_was() -> None:
    learner, batch = SAC(SPEC, {"hidden_sizes": [32]}), filled_buffer().sample(16)
    learner.update(batch)
    twin = SAC(SPEC, {"hidden_sizes": [32]})
    twin.update(batch)
    same_bits_with_two_threads(learner, batch, learner.update)
    learner.update(batch)
    twin.update(batch)
    assert torch.equal(weights(learner), weights(twin))
    assert learner.update_count == twin.update_count == 2


def test_the_trial_notices_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, batch = SAC(SPEC, {"hidden_sizes": [32]}), filled_buffer().sample(16)
    real = learner.update

    def update(batch: Batch) -> Metrics:
        metrics = real(batch)
        with torch.no_grad():
            learner.log_alpha.add_(1e-6 * torch.get_num_threads())
        return metrics

    monkeypatch.setattr(learner, "update", update)
    assert not same_bits_with_two_threads(learner, batch, learner.update)


@pytest.mark.parametrize("members", [1, 2])
def test_gradients_of_layer_norm_do_not_depend_on_the_number_of_threads(members: int) -> None:
    shape = (256,) if members == 1 else (members, 1, 256)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn([256, 256] if members == 1 else [members, 256, 256], generator=generator)
    gradients = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        scale, shift = torch.full(shape, 0.7, requires_grad=True), torch.zeros(shape, requires_grad=True)
        loss = (layer_norm(inputs, scale, shift) - 0.3).square().sum()
        gradients.append(torch.cat([x.flatten() for x in torch.autograd.grad(loss, [scale, shift])]))
    torch.set_num_threads(1)
    assert torch.equal(*gradients)


def test_a_given_number_of_threads_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert not free_cores.may_use_free_cores()


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="idle cores are read from /proc/stat")
def test_idle_time_grows_no_faster_than_the_cores_allow() -> None:
    before, started = free_cores.idle_core_seconds(), time.perf_counter()
    time.sleep(0.2)
    grown = free_cores.idle_core_seconds() - before
    assert before > 0
    assert 0 <= grown <= (time.perf_counter() - started + 0.1) * len(os.sched_getaffinity(0))
