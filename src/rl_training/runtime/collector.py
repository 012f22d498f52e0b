"""Collecting data in environments: steps, records of episodes, and restoring unfinished episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rl_training.algorithms.base import Learner
from rl_training.algorithms.stack import LearnerStack
from rl_training.envs.goals import SUCCESS_KEYS, flatten_goal_observation
from rl_training.envs.workers import WorkerVectorEnv
from rl_training.errors import EnvError, EnvFailedError
from rl_training.interrupts import Interrupted
from rl_training.runtime.action_graphs import accelerated_actions
from rl_training.runtime.exploration import Exploration, ExplorationSettings
from rl_training.runtime.health import require_finite_actions, require_finite_step
from rl_training.runtime.practice import Practice
from rl_training.runtime.rollout_statistics import RolloutStatistics
from rl_training.runtime.run_records import EpisodeRecord, goal_outcome
from rl_training.seeding import Stream, stream_generator, stream_seed
from rl_training.types import Observation

Array = NDArray[Any]

_NO_REWARD = np.zeros(0)
_AT_BOUND = 0.98  # an action beyond it is at the bound of [-1, 1]


class Transition(NamedTuple):
    """One step of every environment, in the order in which buffers take it; the first axis is the environments'."""

    observations: Observation
    actions: Array
    rewards: Array
    next_observations: Observation
    terminated: Array
    truncated: Array


class Collector(RolloutStatistics):
    """Steps a vector environment with an exploring policy.

    Environments are reset here, each episode with its own derived seed, so that no transition crosses an episode's end
    and an unfinished episode can be restored by starting it again and repeating its actions.

    The seed of an episode follows from the index of its environment. ``first_index`` is that of the first one here.
    """

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        learner: Learner,
        settings: ExplorationSettings,
        seed: int,
        practice: Practice | None = None,
        *,
        first_index: int = 0,
    ) -> None:
        super().__init__()
        self.envs, self.learner, self.spec = envs, learner, learner.spec
        self.seed, self._first_index = seed, first_index
        self.num_envs = envs.num_envs
        rng = stream_generator(seed, Stream.EXPLORATION)
        self.exploration = Exploration(settings, learner.run_defaults, self.spec, self.num_envs, rng)
        self._practice = practice
        self._choose = accelerated_actions(learner)
        self._episodes = np.zeros(self.num_envs, np.int64)
        self._returns = np.zeros(self.num_envs)
        self._actions: list[list[Array]] = [[] for _ in range(self.num_envs)]  # the actions of each unfinished episode
        self._observations: Observation | None = None
        self._sent = np.zeros((self.num_envs, self.spec.action_dim), np.float32)

    def step(self, progress: float, random: bool, meanwhile: Callable[[], None] | None = None) -> Transition:
        """Take one step in every environment.

        Args:
            progress: the share of the budget that is used up, from 0 to 1, for schedules.
            random: whether to ignore the policy.
            meanwhile: called while environments in other processes take their step.
        """
        undo, undo_learner = self.undo_point(), learner_undo_point(self.learner)
        try:
            self.send(self._choose(self.inputs(), random, self.noise()), progress)
            if meanwhile is not None:
                meanwhile()
            return self.receive()
        except (EnvError, EnvFailedError, Interrupted):
            undo()  # the run is saved as it was before this step, and a resume repeats the step
            undo_learner()
            raise

    def inputs(self) -> list[Array]:
        """Return what the policy sees, ``[E, policy_dim]``, and then what else the normaliser has to see."""
        if self._observations is None:
            self._observations = self._start(np.ones(self.num_envs, bool))
        observations = self._shown(self._observations)
        parts = [self._flat(observations)]
        if isinstance(observations, dict) and self.learner.normalizer is not None:
            # Hindsight uses achieved goals as desired goals, so the normaliser must see their scale as well.
            parts.append(self._flat({**observations, "desired_goal": observations["achieved_goal"]}))
        return parts

    def noise(self) -> Array | None:
        """Return the standard normal noise of the next step, ``[E, action_dim]``; None if the learner draws it."""
        if not self.exploration.correlates:
            return None
        goes_on = np.array([len(actions) > 0 for actions in self._actions])
        numbers = self._episodes + np.arange(self.num_envs)
        practising = False if self._practice is None else self._practice.active
        return self.exploration.draw_noise(goes_on & self.exploration.is_correlated(numbers, practising))

    def send(self, actions: Array | None, progress: float) -> None:
        """Send actions ``[E, action_dim]`` of the policy, with exploration added, to the environments; None: random."""
        if actions is None:
            actions = self.exploration.random_actions()
        else:
            if not self.spec.is_discrete:
                self.saturation[0] += int((np.abs(actions) > _AT_BOUND).sum())
                self.saturation[1] += actions.size
            actions = self.exploration.explore(actions, progress)
        require_finite_actions(actions, self.learner)
        self._sent = actions
        if isinstance(self.envs, WorkerVectorEnv):
            self.envs.step_async(self.spec.to_env(actions))

    def receive(self) -> Transition:
        """Wait for the step of every environment."""
        assert self._observations is not None  # ``inputs`` came first
        observations, actions = self._observations, self._sent
        if isinstance(self.envs, WorkerVectorEnv):
            answer = self.envs.step_wait()
        else:
            answer = self.envs.step(self.spec.to_env(actions))
        next_observations, rewards, terminated, truncated, infos = answer
        require_finite_step(next_observations, rewards)
        transition = Transition(observations, actions, rewards, next_observations, terminated, truncated)
        if self._practice is not None:
            transition = self._practised(transition)
        for index in range(self.num_envs):
            self._actions[index].append(actions[index])
        self._returns += rewards
        self._observations = next_observations
        done = terminated | truncated
        self.ended = self._finish(done, infos) if done.any() else []
        return transition

    def _shown(self, observations: Observation) -> Observation:
        """Return observations with the goals that are pursued."""
        if self._practice is None or not isinstance(observations, dict):
            return observations
        return self._practice.show(observations)

    def _practised(self, step: Transition) -> Transition:
        """Return a step as it was for the goals that are pursued."""
        assert self._practice is not None
        after = cast(dict[str, Array], step.next_observations)
        rewards, terminated = self._practice.judge(after, step.rewards, step.terminated)
        before, shown = self._shown(step.observations), self._shown(after)
        truncated = step.truncated | (step.terminated & ~terminated)
        replaced = self._practice.replace_held(after, terminated, ~(step.terminated | step.truncated))
        truncated = truncated | (replaced & ~terminated)
        return Transition(before, step.actions, rewards, shown, terminated, truncated)

    def start_episode(self, number: int) -> None:
        """Make the episode with this number the next one in every environment; unfinished episodes are dropped."""
        if (self._episodes != number).any() or any(self._actions):
            self._episodes[:] = number
            self._returns[:] = 0.0
            self._actions = [[] for _ in range(self.num_envs)]
            self._observations = None

    def rollout_metrics(self) -> dict[str, float]:
        """Return the mean return, length and success rate of the last 100 finished episodes, and who practises."""
        metrics = super().rollout_metrics()
        if self._practice is not None and metrics:
            metrics["rollout/practice_share"] = float(self._practice.active.mean())
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return what ``load_state_dict`` needs, unfinished episodes included."""
        observations = self._observations
        return {
            **self.exploration.state_dict(),
            "finished": [list(record[:3]) for record in self.finished],  # what rollout_metrics needs
            "episodes": self._episodes.copy(),
            "returns": self._returns.copy(),
            "actions": {
                str(i): np.array(actions).reshape(-1, self.spec.action_dim) for i, actions in enumerate(self._actions)
            },
            "observations": None if observations is None else self._flat(observations),
            "saturation": list(self.saturation),
            **({} if self._practice is None else {"practice": self._practice.state_dict()}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> list[int]:
        """Restore the state, and the unfinished episodes by replaying them.

        Returns:
            The environments whose replay ended in another observation. They are not deterministic and start a new
            episode instead.
        """
        if len(state["episodes"]) != self.num_envs:
            raise ValueError(f"there are {self.num_envs} environments, the stored run had {len(state['episodes'])}")
        self.exploration.load_state_dict(state)
        self.saturation = list(state.get("saturation", [0, 0]))  # states from before 0.3 have none
        self.finished.clear()
        self.finished.extend(EpisodeRecord(*record) for record in state["finished"])
        self._episodes, self._returns = state["episodes"].copy(), state["returns"].copy()
        self._actions = [list(state["actions"][str(index)]) for index in range(self.num_envs)]
        if state["observations"] is None:
            return []
        self._observations = self._replay_open_episodes()
        differs = (self._flat(self._observations) != state["observations"]).any(axis=1)
        if self._practice is not None:
            self._practice.load_state_dict(state["practice"])
        if differs.any():
            self._episodes[differs] += 1
            self._returns[differs] = 0.0
            for index in np.flatnonzero(differs):
                self._actions[index] = []
            self._observations = self._start(differs)
        return [int(index) for index in np.flatnonzero(differs)]

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()

    def undo_point(self) -> Callable[[], None]:
        """Return a function that restores the state of this moment, for a step in which an environment fails.

        The part of the learner is restored by ``learner_undo_point``.
        """
        undo_exploration = self.exploration.undo_point()
        counts = self._observations, self._episodes.copy(), self._returns.copy(), self.finished.copy()
        saturation = list(self.saturation)
        episodes = [(actions, len(actions)) for actions in self._actions]
        undo_practice = None if self._practice is None else self._practice.undo_point()

        def undo() -> None:
            undo_exploration()
            if undo_practice is not None:
                undo_practice()
            self._observations, self._episodes, self._returns, self.finished = counts
            self.saturation = saturation
            self._actions = [actions[:length] for actions, length in episodes]

        return undo

    def _finish(self, done: Array, infos: dict[str, Any]) -> list[EpisodeRecord]:
        """Record the episodes that ended and start the next ones."""
        records = []
        for index in np.flatnonzero(done):
            success, distance, goal = _success(infos, int(index)), None, None
            if self._practice is not None and self._practice.reached[index]:
                success = True  # its own goal was held, before it pursued another one
            if isinstance(self._observations, dict):
                achieved, desired = self._observations["achieved_goal"], self._observations["desired_goal"]
                distance, goal = goal_outcome(achieved[index], desired[index])
            outcome = float(self._returns[index]), len(self._actions[index]), success
            records.append(EpisodeRecord(*outcome, distance, self._first_index + int(index), goal))
            self._actions[index] = []
        self.finished.extend(records)
        self._episodes[done] += 1
        self._returns[done] = 0.0
        self._observations = self._start(done)
        return records

    def _start(self, mask: Array) -> Observation:
        """Start an episode in the environments in ``mask``, and choose what it pursues."""
        observations = self._reset(mask)
        if self._practice is not None:
            self._practice.begin(mask, cast(dict[str, Array], observations)["desired_goal"])
        return observations

    def _reset(self, mask: Array) -> Observation:
        """Reset the environments in ``mask``, each with the seed of its episode; the others' observations stay."""
        seeds = [
            stream_seed(self.seed, self._first_index + index, int(number))
            for index, number in enumerate(self._episodes)
        ]
        observations, _ = self.envs.reset(seed=cast(Any, seeds), options={"reset_mask": mask})
        require_finite_step(observations, _NO_REWARD)
        return observations  # type: ignore[no-any-return]

    def _replay_open_episodes(self) -> Observation:
        """Start the unfinished episodes again and repeat their actions.

        All environments step together. Each one starts so late that all of them repeat their last action in the same
        step. Before its start an environment gets zero actions, and the reset at its start discards their effect.
        """
        lengths = np.array([len(actions) for actions in self._actions])
        longest = int(lengths.max())
        observations = self._reset(np.ones(self.num_envs, bool))
        idle = np.zeros(self.spec.action_dim, np.float32)
        for step in range(longest):
            starting = lengths == longest - step
            if step > 0 and starting.any():
                self._reset(starting)
            position = [step - (longest - int(length)) for length in lengths]
            actions = np.stack([self._actions[i][t] if t >= 0 else idle for i, t in enumerate(position)])
            observations, _, terminated, truncated, _ = self.envs.step(self.spec.to_env(actions))
            ended = (terminated | truncated) & (step < longest - 1)
            if ended.any():
                self._reset(ended)
        if (lengths == 0).any():
            observations = self._reset(lengths == 0)
        return observations

    def _flat(self, observations: Observation) -> Array:
        if isinstance(observations, dict):
            return flatten_goal_observation(observations)
        return np.asarray(observations, dtype=np.float32)


def learner_undo_point(learner: Learner | LearnerStack) -> Callable[[], None]:
    """Return a function that undoes what acting changes in a learner: its noise and the normaliser's statistics."""
    random_state = learner.generator.get_state()
    statistics = [] if learner.normalizer is None else list(learner.normalizer.buffers())
    before = [tensor.clone() for tensor in statistics]

    def undo() -> None:
        learner.generator.set_state(random_state)
        for tensor, value in zip(statistics, before, strict=True):
            tensor.copy_(value)

    return undo


def _success(infos: dict[str, Any], index: int) -> bool | None:
    """Return one environment's success from a vector environment's infos."""
    for key in SUCCESS_KEYS:
        if key in infos and (f"_{key}" not in infos or infos[f"_{key}"][index]):
            return bool(infos[key][index])
    return None
