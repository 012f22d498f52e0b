"""One contract for all learners, and the arithmetic that is each one's own."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from rl_training.algorithms import AWAC, BC, CQL, DDPG, DQN, HER, IQL, REDQ, RLPD, SAC, TD3, TD3BC, DiscreteCQL, Learner
from rl_training.errors import ConfigError
from rl_training.types import Batch, SpaceSpec

CONTINUOUS = SpaceSpec(observation_dim=3, action_dim=2, action_low=(-2.0, 0.0), action_high=(2.0, 1.0))
DISCRETE = SpaceSpec(observation_dim=3, action_dim=1, num_actions=4)
GOAL = SpaceSpec(observation_dim=3, action_dim=2, goal_dim=2, reward_range=(-1.0, 0.0))
SMALL = {"hidden_sizes": [16, 16]}

LEARNERS = [
    pytest.param(DDPG, CONTINUOUS, {}, id="ddpg"),
    pytest.param(TD3, CONTINUOUS, {}, id="td3"),
    pytest.param(SAC, CONTINUOUS, {}, id="sac"),
    pytest.param(SAC, CONTINUOUS, {"alpha": 0.2}, id="sac-fixed-alpha"),
    pytest.param(SAC, CONTINUOUS, {"num_critics": 5, "num_min_critics": 2, "policy_delay": 2}, id="sac-ensemble"),
    pytest.param(DQN, DISCRETE, {}, id="dqn"),
    pytest.param(TD3, GOAL, {"normalize_observations": True, "max_grad_norm": 1.0}, id="td3-goal-normalised"),
    pytest.param(SAC, GOAL, {}, id="sac-goal"),
    pytest.param(HER, GOAL, {}, id="her"),
    pytest.param(BC, CONTINUOUS, {}, id="bc"),
    pytest.param(BC, CONTINUOUS, {"policy": "gaussian"}, id="bc-gaussian"),
    pytest.param(BC, DISCRETE, {}, id="bc-discrete"),
    pytest.param(TD3BC, CONTINUOUS, {"normalize_observations": True}, id="td3_bc"),
    pytest.param(IQL, CONTINUOUS, {}, id="iql"),
    pytest.param(AWAC, CONTINUOUS, {}, id="awac"),
    pytest.param(CQL, CONTINUOUS, {"cql_alpha": 0.1}, id="cql"),
    pytest.param(CQL, CONTINUOUS, {"cql_alpha": 0.1, "lagrange": 5.0}, id="cql-lagrange"),
    pytest.param(CQL, CONTINUOUS, {"cql_alpha": 0.1, "calibrated": True, "bc_updates": 2}, id="cql-calibrated"),
    pytest.param(RLPD, CONTINUOUS, {"policy_delay": 2, "num_critics": 4}, id="rlpd"),
    pytest.param(REDQ, CONTINUOUS, {"policy_delay": 2, "num_critics": 4}, id="redq"),
    pytest.param(TD3, CONTINUOUS, {"bc_weight": 1.0}, id="td3-demonstrations"),
    pytest.param(SAC, CONTINUOUS, {"bc_weight": 1.0, "bc_q_filter": False}, id="sac-demonstrations"),
    pytest.param(DiscreteCQL, DISCRETE, {"cql_alpha": 0.1}, id="discrete_cql"),
]


def random_batch(spec: SpaceSpec, size: int = 32, seed: int = 0) -> Batch:
    g = torch.Generator().manual_seed(seed)
    actions = torch.rand(size, spec.action_dim, generator=g) * 2 - 1
    if spec.num_actions is not None:
        actions = torch.randint(spec.num_actions, (size, 1), generator=g).float()
    return Batch(
        observations=torch.randn(size, spec.policy_dim, generator=g),
        actions=actions,
        rewards=-torch.rand(size, generator=g),
        next_observations=torch.randn(size, spec.policy_dim, generator=g),
        terminated=(torch.rand(size, generator=g) < 0.2).float(),
        returns=-torch.rand(size, generator=g) * 10,
        offline_rows=size // 2,
    )


def weights(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in learner.state_dict().items()}


@pytest.mark.parametrize(("learner_type", "spec", "options"), LEARNERS)
class TestContract:
    def test_updates_move_every_network_and_report_finite_tensors(self, learner_type, spec, options):
        learner = learner_type(spec, SMALL | options)
        learner.observe(torch.randn(50, spec.policy_dim))
        before, metrics = weights(learner), {}
        for seed in range(4):
            metrics.update(learner.update(random_batch(spec, seed=seed)))
        assert learner.update_count == 4
        assert learner_type is BC or {"train/critic_loss", "train/q_mean"} <= metrics.keys()
        assert spec.is_discrete or "train/actor_loss" in metrics
        assert all(isinstance(value, torch.Tensor) and value.isfinite() for value in metrics.values())
        unmoved = {name for name, value in weights(learner).items() if torch.equal(value, before[name])}
        fixed = {"log_alpha"} if options.get("alpha") else set()
        fixed |= {"log_cql_alpha"} if learner_type is CQL and "lagrange" not in options else set()
        assert {name for name in unmoved if "normalizer" not in name} == fixed

    def test_actions_are_in_bounds_and_predict_speaks_the_environments_units(self, learner_type, spec, options):
        learner = learner_type(spec, SMALL | options)
        observations = torch.randn(20, spec.policy_dim, generator=torch.Generator().manual_seed(0)) * 30
        for deterministic in (True, False):
            actions = learner.act(observations, deterministic)
            assert actions.shape == (20, spec.action_dim)
            low, high = (0, spec.num_actions - 1) if spec.num_actions else (-1, 1)
            assert actions.min() >= low
            assert actions.max() <= high
        batch = learner.predict(observations.numpy())
        single = learner.predict(observations[0].numpy())
        np.testing.assert_allclose(single, batch[0], atol=1e-5)
        assert single.shape == (() if spec.is_discrete else (spec.action_dim,))
        if spec.action_low is not None:
            assert (batch >= spec.action_low).all()
            assert (batch <= spec.action_high).all()
            assert np.abs(batch[:, 0]).max() > 1.0  # beyond [-1, 1], where the environment's bounds are

    def test_same_seed_same_learner_and_another_seed_another(self, learner_type, spec, options):
        def trained(seed: int) -> dict[str, torch.Tensor]:
            learner = learner_type(spec, SMALL | options, seed=seed)
            for index in range(3):
                learner.update(random_batch(spec, seed=index))
            return weights(learner)

        first, again, other = trained(1), trained(1), trained(2)
        assert all(torch.equal(first[name], again[name]) for name in first)
        assert any(not torch.equal(first[name], other[name]) for name in first)

    def test_global_random_state_is_neither_used_nor_touched(self, learner_type, spec, options):
        torch.manual_seed(0)
        state = torch.get_rng_state()
        learner = learner_type(spec, SMALL | options)
        learner.update(random_batch(spec))
        learner.act(torch.zeros(1, spec.policy_dim), deterministic=False)
        assert torch.equal(torch.get_rng_state(), state)

    def test_training_state_restores_the_updates_to_come_bit_for_bit(self, learner_type, spec, options):
        original = learner_type(spec, SMALL | options, seed=3)
        for index in range(3):
            original.update(random_batch(spec, seed=index))
        restored = learner_type(spec, SMALL | options, seed=4)
        restored.load_training_state(copy.deepcopy(original.training_state()))
        for learner in (original, restored):
            for index in range(3, 6):
                learner.update(random_batch(spec, seed=index))
        expected, found = weights(original), weights(restored)
        assert all(torch.equal(expected[name], found[name]) for name in expected)

    def test_learning_rates_follow_the_schedules_factor(self, learner_type, spec, options):
        learner = learner_type(spec, SMALL | options)
        learner.scale_learning_rates(0.0)
        scheduled = learner.scheduled_optimizers or ("",)
        before = {
            name: value
            for name, value in weights(learner).items()
            if "target" not in name and any(part in name for part in scheduled)
        }
        assert before
        learner.update(random_batch(spec))
        after = weights(learner)
        assert all(torch.equal(after[name], value) for name, value in before.items() if "normalizer" not in name)

    def test_repeated_updates_fit_one_batch(self, learner_type, spec, options):
        without_future = {} if learner_type is BC else {"gamma": 0.0}
        learner = learner_type(spec, SMALL | options | {"learning_rate": 1e-3} | without_future)
        batch = random_batch(spec)
        name = "train/actor_loss" if learner_type is BC else "train/critic_loss"
        first = learner.update(batch)[name]
        for _ in range(400 if learner_type is BC else 100):
            last = learner.update(batch)[name]
        assert last < first - 0.3 * first.abs()


def test_a_learner_refuses_the_wrong_kind_of_actions():
    with pytest.raises(ConfigError, match=r"DDPG needs continuous actions, but the task has discrete ones"):
        DDPG(DISCRETE)
    with pytest.raises(ConfigError, match="DQN needs discrete actions"):
        DQN(CONTINUOUS)


def test_her_builds_its_backend_and_needs_goals():
    assert type(HER(GOAL)) is DDPG
    assert type(HER(GOAL, backend="sac")) is SAC
    with pytest.raises(ConfigError, match="did you mean 'td3'"):
        HER(GOAL, backend="td4")
    with pytest.raises(ConfigError, match="goal_dim"):
        HER(CONTINUOUS)


def test_ddpg_is_td3_without_its_additions():
    settings = DDPG.Settings()
    assert (settings.num_critics, settings.policy_delay, settings.target_noise) == (1, 1, 0.0)


def test_bootstrapping_stops_at_termination_only():
    learner = DDPG(CONTINUOUS, SMALL)
    batch = random_batch(CONTINUOUS)
    ended = batch._replace(terminated=torch.ones(32))
    for value in (0.0, 100.0):  # whatever follows a termination cannot matter
        learner.model.target_critic.mlp.output.bias.data.fill_(value)
        loss, _ = learner.critic_loss(ended)
        expected = (learner.model.critic(batch.observations, batch.actions)[0] - batch.rewards).square().mean()
        assert loss.item() == pytest.approx(expected.item())


@pytest.mark.parametrize("learner_type", [DDPG, TD3, SAC])
def test_target_values_are_clamped_to_what_the_reward_allows(learner_type):
    learner = learner_type(GOAL, SMALL | {"gamma": 0.9})
    assert learner.value_bounds == pytest.approx((-10.0, 0.0))
    batch = random_batch(GOAL)._replace(rewards=torch.full((32,), -1.0), terminated=torch.zeros(32))
    learner.model.target_critic.mlp.output.bias.data.fill_(-1000.0)
    loss, _ = learner.critic_loss(batch)
    values = learner.model.critic(batch.observations, batch.actions)
    expected = (values - (-1.0 + 0.9 * -10.0)).square().mean(dim=1).sum()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert learner_type(GOAL, SMALL | {"clamp_target": False}).value_bounds is None
    assert learner_type(CONTINUOUS, SMALL).value_bounds is None


def test_value_bounds_for_rewards_of_either_sign():
    def bounds(low: float, high: float) -> tuple[float, float] | None:
        spec = SpaceSpec(observation_dim=1, action_dim=1, goal_dim=1, reward_range=(low, high))
        return DDPG(spec, SMALL | {"gamma": 0.5}).value_bounds

    assert bounds(0.0, 1.0) == pytest.approx((0.0, 2.0))
    assert bounds(2.0, 3.0) == pytest.approx((2.0, 6.0))
    assert bounds(-3.0, -2.0) == pytest.approx((-6.0, -2.0))


def test_goal_tasks_switch_on_layer_norm_and_switch_off_the_entropy_backup():
    assert SAC(GOAL, SMALL).critic_layer_norm
    assert not SAC(GOAL, SMALL).backup_entropy
    assert not SAC(CONTINUOUS, SMALL).critic_layer_norm
    assert SAC(CONTINUOUS, SMALL).backup_entropy
    assert len(SAC(GOAL, SMALL | {"critic_layer_norm": False}).model.critic.mlp.norms) == 0


def test_double_dqn_takes_the_online_networks_choice_at_the_targets_value():
    learner = DQN(DISCRETE, SMALL | {"gamma": 0.5})
    batch = random_batch(DISCRETE)._replace(terminated=torch.zeros(32))
    with torch.no_grad():
        choice = learner.model.critic(batch.next_observations).argmax(1)
        learner.model.target_critic.output.weight.mul_(-3.0)  # now target and online networks disagree
        next_values = learner.model.target_critic(batch.next_observations)[torch.arange(32), choice]
        values = learner.model.critic(batch.observations)[torch.arange(32), batch.actions[:, 0].long()]
        expected = torch.nn.functional.smooth_l1_loss(values, batch.rewards + 0.5 * next_values)
    assert learner.critic_loss(batch)[0].item() == pytest.approx(expected.item(), rel=1e-6)


def test_only_the_drawn_critics_enter_the_target_minimum():
    learner = SAC(CONTINUOUS, SMALL | {"num_critics": 6, "num_min_critics": 2})
    learner.model.target_critic.mlp.output.weight.data.zero_()
    learner.model.target_critic.mlp.output.bias.data[:, 0, 0] = torch.arange(6.0)
    observations, actions = torch.zeros(1, 3), torch.zeros(1, 2)
    minima = [learner._target_minimum(observations, actions).item() for _ in range(400)]
    assert set(minima) == {0.0, 1.0, 2.0, 3.0, 4.0}  # never 5: it cannot be the smaller of two
    assert np.mean(np.array(minima) == 0.0) == pytest.approx(1 / 3, abs=0.08)


def test_an_ensemble_equals_its_members_one_by_one():
    critic = TD3(CONTINUOUS, SMALL | {"num_critics": 3, "critic_layer_norm": True}).model.critic
    observations, actions = torch.randn(8, 3), torch.randn(8, 2)
    together = critic(observations, actions)
    one_by_one = [critic(observations, actions, torch.tensor([index]))[0] for index in range(3)]
    torch.testing.assert_close(together, torch.stack(one_by_one))


def test_sac_log_probability_matches_a_numerical_density():
    learner = SAC(SpaceSpec(observation_dim=1, action_dim=1), SMALL)
    observations = torch.zeros(200_000, 1)
    actions, log_probs = learner.model.actor.sample(observations, learner.generator)
    actions, log_probs = actions[:, 0].detach(), log_probs.detach()
    inside = (actions > 0.1) & (actions < 0.12)
    density = inside.float().mean().item() / 0.02
    assert log_probs[inside].exp().mean().item() == pytest.approx(density, rel=0.05)


def test_automatic_temperature_moves_towards_the_target_entropy():
    for target, rises in ((5.0, True), (-20.0, False)):
        learner = SAC(CONTINUOUS, SMALL | {"target_entropy": target, "learning_rate": 1e-2})
        for _ in range(10):
            learner.update(random_batch(CONTINUOUS))
        assert (learner.log_alpha.item() > 0.0) is rises


def test_the_saturation_penalty_holds_the_actor_back():
    def largest_output(penalty: float) -> float:
        learner = DDPG(GOAL, SMALL | {"saturation_penalty": penalty, "learning_rate": 1e-2})
        # A critic that always wants more of the action drives tanh into saturation.
        with torch.no_grad():
            for parameter in learner.model.critic.parameters():
                parameter.zero_()
        batch = random_batch(GOAL)
        learner.model.critic.forward = lambda _, actions, __, fixed: 10.0 * actions.sum(-1, keepdim=True).T
        for _ in range(400):
            loss, _ = learner.actor_loss(batch)
            learner._minimize(loss, learner.actor_optimizer)
        return learner.model.actor.mlp(batch.observations).abs().max().item()

    assert largest_output(0.01) < 5.0 < largest_output(0.0)


def test_normaliser_matches_the_statistics_of_everything_it_saw():
    from rl_training.models.normalizer import ObservationNormalizer

    data = torch.randn(500, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 5.0, 0.1]) + 7.0
    normalizer = ObservationNormalizer(3)
    for part in data.split([1, 4, 95, 400]):
        normalizer.observe(part)
    torch.testing.assert_close(normalizer.mean, data.double().mean(0))
    torch.testing.assert_close(normalizer.variance, data.double().var(0, correction=0))
    out = normalizer(data)
    torch.testing.assert_close(out.mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    assert normalizer(torch.full((1, 3), 1e9)).abs().max() == 10.0


def test_td3_bc_weighs_the_value_by_its_size():
    learner = TD3BC(CONTINUOUS, SMALL | {"bc_alpha": 2.5})
    batch = random_batch(CONTINUOUS)
    loss, metrics = learner.actor_loss(batch)
    values = learner.model.critic(batch.observations, learner.model.actor(batch.observations))[0]
    expected = metrics["train/bc_loss"] - 2.5 * values.mean() / values.abs().mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    cloning = TD3BC(CONTINUOUS, SMALL | {"bc_alpha": 0.0})
    loss, metrics = cloning.actor_loss(batch)
    assert loss.item() == pytest.approx(metrics["train/bc_loss"].item())


@pytest.mark.parametrize("expectile", [0.5, 0.9])
def test_iql_value_is_the_expectile_of_the_critics(expectile):
    learner = IQL(CONTINUOUS, SMALL | {"expectile": expectile, "learning_rate": 3e-3})
    batch = random_batch(CONTINUOUS, size=64)._replace(observations=torch.zeros(64, 3))  # one state, 64 actions
    targets = learner._target_minimum(batch.observations, batch.actions)
    for _ in range(800):
        loss, _ = learner.value_loss(batch)
        learner._minimize(loss, learner.value_optimizer)
    value = learner.model.value(batch.observations[:1]).item()
    above = (targets - value).clamp(min=0).sum().item()
    below = (value - targets).clamp(min=0).sum().item()
    assert expectile * above == pytest.approx((1 - expectile) * below, rel=0.05)


def test_advantage_weights_prefer_better_actions_and_are_limited():
    batch = random_batch(CONTINUOUS, size=4)
    advantages = torch.tensor([-100.0, 0.0, 1.0, 100.0])
    learner = IQL(CONTINUOUS, SMALL | {"temperature": 2.0, "max_weight": 50.0})
    log_probs = learner.model.actor.log_prob(batch.observations, batch.actions)
    weights = torch.tensor([0.0, 1.0, np.exp(2.0), 50.0])
    expected = -(weights * log_probs).mean()
    assert learner.actor_loss(batch, advantages).item() == pytest.approx(expected.item(), rel=1e-4)


def test_a_copied_learner_learns_on_as_the_original_does():
    learner = TD3(CONTINUOUS, SMALL)
    for seed in range(4):
        learner.update(random_batch(CONTINUOUS, seed=seed))
    twin = copy.deepcopy(learner)
    twin.generator.set_state(learner.generator.get_state())
    for seed in range(4, 8):
        for each in (learner, twin):
            each.update(random_batch(CONTINUOUS, seed=seed))
    assert all(torch.equal(a, b) for a, b in zip(learner.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize("learner_type", [IQL, AWAC])
def test_normalised_advantages_do_not_depend_on_the_scale_of_the_reward(learner_type):
    batch = random_batch(CONTINUOUS, size=64)
    advantages = torch.linspace(-3.0, 5.0, 64)
    losses = {}
    for normalized in (True, False):
        learner = learner_type(CONTINUOUS, SMALL | {"normalize_advantages": normalized})
        losses[normalized] = [
            learner.weighted_likelihood_loss(batch, scale * advantages + shift, 2.0).item()
            for scale, shift in ((1.0, 0.0), (100.0, 0.0), (0.01, 7.0))
        ]
    assert losses[True] == pytest.approx([losses[True][0]] * 3, rel=1e-3)
    assert losses[False][1] != pytest.approx(losses[False][0], rel=0.1)
    weights = (2.0 * (advantages - advantages.mean()) / advantages.std(correction=0)).exp()
    log_probs = learner.model.actor.log_prob(batch.observations, batch.actions)
    assert losses[True][0] == pytest.approx(-(weights * log_probs).mean().item(), rel=1e-4)


def test_normalised_advantages_of_a_single_transition_are_zero():
    learner = IQL(CONTINUOUS, SMALL | {"normalize_advantages": True})
    batch = random_batch(CONTINUOUS, size=1)
    expected = -learner.model.actor.log_prob(batch.observations, batch.actions).item()
    assert learner.actor_loss(batch, torch.tensor([5.0])).item() == pytest.approx(expected)


def test_cql_gap_is_the_log_mean_exp_of_other_actions_less_the_data():
    learner = CQL(CONTINUOUS, SMALL | {"cql_actions": 4000})
    batch = random_batch(CONTINUOUS, size=2)
    grid = torch.linspace(-1, 1, 81)
    actions = torch.cartesian_prod(grid, grid)
    gap = learner.conservative_gap(batch)
    for member in range(2):
        exact = []
        for row in range(2):
            values = learner.model.critic(batch.observations[row].expand(len(actions), -1), actions)[member]
            # The integral of exp Q over the square of area 4, which all three sources estimate.
            integral = torch.logsumexp(values, 0) + np.log(4.0 / len(actions))
            taken = learner.model.critic(batch.observations[row : row + 1], batch.actions[row : row + 1])[member, 0]
            exact.append((integral - taken).item())
        assert gap[member].item() == pytest.approx(np.mean(exact), abs=0.05)


def test_conservatism_lowers_the_value_of_unseen_actions():
    def gap_after_training(learner_type, spec, **options) -> float:
        learner = learner_type(spec, SMALL | {"learning_rate": 3e-3, "gamma": 0.5} | options)
        batch = random_batch(spec, size=64)
        for _ in range(200):
            metrics = learner.update(batch)
        return metrics["train/cql_gap"].item()

    for learner_type, spec in ((CQL, CONTINUOUS), (DiscreteCQL, DISCRETE)):
        assert gap_after_training(learner_type, spec, cql_alpha=5.0) < gap_after_training(
            learner_type, spec, cql_alpha=0.0
        )


def test_an_observation_of_another_size_is_refused():
    with pytest.raises(ConfigError, match=r"the observation has 4 numbers: expected \d"):
        SAC(CONTINUOUS, SMALL).predict(np.zeros(4, np.float32))
