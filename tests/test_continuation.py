"""Learning on: a second call of learn, a longer budget, environments given as objects, starting from another run."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training import BC, HER, SAC, TransitionDataset, train_sac
from rl_training.config import load_config, parse_config
from rl_training.envs import PointReachGoalEnv
from rl_training.errors import ConfigError, EnvError
from rl_training.experiment.manager import resume_experiment
from rl_training.runtime import Callback, train
from rl_training.runtime.checkpointing import resolve_checkpoint
from rl_training.runtime.run import resume
from rl_training.tools.comparison import full_state, state_differences

SMALL = {"hidden_sizes": [8], "batch_size": 8, "learning_starts": 20, "eval_interval": None, "log_interval": 20}


def her_values(tmp_path, **changes):
    values = {"total_timesteps": 120, "eval_episodes": 1, "output_dir": str(tmp_path), "algo_kwargs": SMALL}
    return {**values, **changes}


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.at = step

    def on_step(self, trainer):
        if trainer.state.global_step == self.at:
            trainer.state.stop("interrupted by a test")


def test_learning_again_goes_on_in_the_same_run(tmp_path):
    model = HER(her_values(tmp_path, env_id="rl_training/PointReach2D-v0"))
    first = model.learn()
    second = model.learn(60)
    assert (first.global_step, second.global_step) == (120, 180)
    assert first.run_dir == second.run_dir
    assert load_config(first.run_dir / "config.yaml").total_timesteps == 180
    assert model.learn().global_step == 300  # as many again as configured
    fresh = model.learn(60, reset=True)
    assert (fresh.global_step, fresh.run_dir != first.run_dir) == (60, True)


def test_learning_again_first_finishes_what_was_interrupted(tmp_path):
    model = HER(her_values(tmp_path, env_id="rl_training/PointReach2D-v0"))
    assert model.learn(callbacks=[StopAt(70)]).status == "interrupted"
    assert model.learn().global_step == 120


def test_a_run_with_a_larger_budget_equals_one_that_had_it_from_the_start(tmp_path):
    values = her_values(tmp_path, env_id="Pendulum-v1")
    short = train_sac(values)
    long = train_sac({**values, "total_timesteps": 200})
    again = resume(short.run_dir, overrides=["total_timesteps=200"])
    states = [full_state(resolve_checkpoint(result.run_dir / "checkpoints")) for result in (long, again)]
    assert [line for line in state_differences(*states) if "trainer/" not in line] == []


def test_a_complete_run_says_that_nothing_is_left_to_do(tmp_path):
    done = train_sac(her_values(tmp_path, env_id="Pendulum-v1"))
    with pytest.warns(UserWarning, match=r"complete at 120 steps; a larger total_timesteps"):
        assert resume_experiment(done.run_dir).global_step == 120


def test_an_override_that_does_not_fit_leaves_the_configuration_alone(tmp_path):
    done = train_sac(her_values(tmp_path, env_id="Pendulum-v1"))
    before = (done.run_dir / "config.yaml").read_text()
    with pytest.raises(Exception, match="hidden_sizes"):
        resume(done.run_dir, overrides=["algo_kwargs.hidden_sizes=[4]"])
    assert (done.run_dir / "config.yaml").read_text() == before


class Counted(gym.Wrapper):
    """Counts its steps over all copies, to show that a wrapper is part of the object."""

    steps = 0

    def step(self, action):
        Counted.steps += 1
        return super().step(action)


@pytest.mark.parametrize(
    "env",
    [
        pytest.param(lambda: Counted(PointReachGoalEnv(max_steps=10)), id="function"),
        pytest.param(Counted(PointReachGoalEnv(max_steps=10)), id="environment"),
    ],
)
def test_an_environment_can_be_an_object_with_wrappers(tmp_path, env):
    Counted.steps = 0
    model = HER(her_values(tmp_path, total_timesteps=60), env=env)
    result = model.learn()
    assert result.global_step == 60
    assert Counted.steps >= 60
    assert model.learn(30).global_step == 90
    again = HER(her_values(tmp_path), env=env)
    assert again.resume(result.run_dir, total_timesteps=120).global_step == 120
    with pytest.raises(EnvError, match="given as an object"):
        HER(her_values(tmp_path, env_id="rl_training/PointReach2D-v0")).resume(result.run_dir)
    gym.registry.pop(model.config.env_id)  # as in another process
    with pytest.raises(EnvError, match="given as an object, in another process"):
        resume(result.run_dir)


def test_an_environment_made_by_gymnasium_keeps_its_arguments(tmp_path):
    env = gym.make("Pendulum-v1", g=3.0, max_episode_steps=17)
    model = SAC(her_values(tmp_path), env=env)
    records = []

    class Lengths(Callback):
        def on_episode(self, trainer, record):
            records.append(record.length)

    model.learn(callbacks=[Lengths()])
    assert set(records) == {17}
    assert gym.make(model.config.env_id).unwrapped.g == 3.0


def test_what_is_no_environment_is_refused(tmp_path):
    class Handle(gym.Env):
        def __deepcopy__(self, memo):
            raise TypeError("it holds a socket")

    with pytest.raises(EnvError, match="expected a function that builds it"):
        SAC(her_values(tmp_path), env=Handle())
    with pytest.raises(EnvError, match="expected an id, an environment, or a function"):
        SAC(her_values(tmp_path), env=3)


def rows(scale: float = 1.0, n: int = 64) -> TransitionDataset:
    rng = np.random.default_rng(0)
    return TransitionDataset.from_dict(
        {
            "observations": rng.normal(size=(n, 3)),
            "actions": rng.uniform(-scale, scale, (n, 1)),
            "rewards": rng.normal(size=n),
            "next_observations": rng.normal(size=(n, 3)),
            "terminated": np.arange(n) % 16 == 15,
        }
    )


def test_bounds_of_actions_are_compared_and_can_be_given_without_an_environment(tmp_path):
    """Pendulum's actions lie in [-2, 2]; data without an environment is taken to lie in [-1, 1]."""
    small = {"hidden_sizes": [8], "batch_size": 8}
    values = {"total_timesteps": 5, "output_dir": str(tmp_path)}
    unbounded = BC({**values, "algo_kwargs": small})
    with pytest.warns(UserWarning, match="no env_id"):
        unbounded.learn(dataset=rows())
    online = {**values, "env_id": "Pendulum-v1", "total_timesteps": 60, "eval_episodes": 1}
    start = {**SMALL, "init_from": str(unbounded.run_dir)}
    with pytest.raises(
        ConfigError, match=r"low bounds are \[-1\.0\] in that run and \[-2\.0\] in this one.*action_low"
    ):
        train({**online, "algo": "sac", "algo_kwargs": start})
    bounded = BC({**values, "algo_kwargs": {**small, "action_low": [-2.0], "action_high": [2.0]}})
    with pytest.warns(UserWarning, match="no env_id"):
        bounded.learn(dataset=rows(2.0))
    observation = np.ones(3, np.float32)
    expected = bounded.predict(observation)[0]
    seen = []

    class First(Callback):
        def on_training_start(self, trainer):
            seen.append(trainer.learner.predict(observation))

    with pytest.warns(UserWarning, match="only the policy is loaded"):
        train({**online, "algo": "sac", "algo_kwargs": {**start, "init_from": str(bounded.run_dir)}}, [First()])
    np.testing.assert_allclose(seen[0], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"action_low": [-1.0]}, "belong together"),
        ({"action_low": [1.0], "action_high": [0.0]}, "is not below action_high"),
        ({"action_low": [-1.0, -1.0], "action_high": [1.0, 1.0]}, "the data has 1 actions"),
    ],
)
def test_wrong_bounds_are_refused(tmp_path, bounds, message):
    values = {"total_timesteps": 5, "output_dir": str(tmp_path), "algo_kwargs": {"hidden_sizes": [8], **bounds}}
    with pytest.raises(ConfigError, match=message):
        BC(values).learn(dataset=rows())


def test_a_function_of_one_algorithm_refuses_the_configuration_of_another(tmp_path):
    config = parse_config({"algo": "ddpg", **her_values(tmp_path, env_id="Pendulum-v1")})
    with pytest.raises(ConfigError, match="algo = 'ddpg': expected 'sac' here"):
        train_sac(config)
    assert list(tmp_path.iterdir()) == []


def test_a_warm_up_moves_weights_while_pretraining(tmp_path):
    """The schedule runs through pretraining by itself; at progress 0 a warm-up would mean a rate of 0 throughout."""
    settings = {**SMALL, "lr_schedule": "warmup", "offline_pretrain_updates": 20, "offline_batch_ratio": 0.5}
    moved = []

    class Watch(Callback):
        def on_training_start(self, trainer):
            self.before = trainer.learner.model.actor.mlp.output.weight.clone()

        def on_step(self, trainer):
            if trainer.state.update_count == 20 and trainer.state.global_step == 0:
                moved.append(not torch.equal(self.before, trainer.learner.model.actor.mlp.output.weight))

    data = rows(2.0)
    train({"algo": "sac", **her_values(tmp_path, env_id="Pendulum-v1", algo_kwargs=settings)}, [Watch()], dataset=data)
    assert moved == [True]


def test_a_row_of_metrics_is_the_mean_over_its_updates(tmp_path):
    from rl_training.runtime import run as runs

    losses, logged = [], []

    class Record(Callback):
        def on_training_start(self, trainer):
            update = trainer.learner.update

            def recorded(batch):
                metrics = update(batch)
                losses.append(float(metrics["train/critic_loss"]))
                return metrics

            trainer.learner.update = recorded

        def on_log(self, trainer, row):
            logged.append((row["update_count"], row.get("train/critic_loss")))

    runs.train({"algo": "sac", **her_values(tmp_path, env_id="Pendulum-v1")}, [Record()])
    done = 0
    for updates, mean in logged:
        if updates > done:
            assert mean == pytest.approx(np.mean(losses[done:updates]), rel=1e-5)
        done = updates
    assert done == len(losses) == 100
