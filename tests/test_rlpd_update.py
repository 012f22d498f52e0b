"""RLPD's arithmetic against the paper's, written out by hand; and the actor's pull towards demonstrations."""

from __future__ import annotations

import copy

import pytest
import torch

from rl_training.algorithms import RLPD, SAC, TD3, RLPDAlgorithm, rlpd_loss
from rl_training.config import parse_config
from rl_training.errors import ConfigError
from rl_training.runtime.settings import parse_run
from rl_training.types import Batch, SpaceSpec

SPEC = SpaceSpec(observation_dim=3, action_dim=2)
SMALL = {"hidden_sizes": [16, 16], "policy_delay": 4}


def random_batch(size: int = 24, seed: int = 0, offline_rows: int = 0, spec: SpaceSpec = SPEC) -> Batch:
    g = torch.Generator().manual_seed(seed)
    return Batch(
        observations=torch.randn(size, spec.policy_dim, generator=g),
        actions=torch.rand(size, spec.action_dim, generator=g) * 2 - 1,
        rewards=torch.randn(size, generator=g),
        next_observations=torch.randn(size, spec.policy_dim, generator=g),
        terminated=(torch.rand(size, generator=g) < 0.3).float(),
        offline_rows=offline_rows,
    )


def one_critic(critic, member: int, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Evaluate one member of an ensemble layer by layer, with PyTorch's own linear and LayerNorm."""
    x, mlp = torch.cat([observations, actions], dim=1), critic.mlp
    for index, layer in enumerate(mlp.hidden):
        x = torch.nn.functional.linear(x, layer.weight[member].T, layer.bias[member, 0])
        if mlp.norms:
            norm = mlp.norms[index]
            x = torch.nn.functional.layer_norm(x, x.shape[-1:], norm.weight[member, 0], norm.bias[member, 0])
        x = x.relu()
    return torch.nn.functional.linear(x, mlp.output.weight[member].T, mlp.output.bias[member, 0])[:, 0]


def weights(learner) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in learner.state_dict().items()}


def moved(before: dict[str, torch.Tensor], learner) -> set[str]:
    """Return which parts of a learner have changed."""
    names = {name for name, value in learner.state_dict().items() if not torch.equal(value, before[name])}
    return {".".join(name.split(".")[:2]) for name in names}


def reference_losses(learner: RLPD, batch: Batch, backup_entropy: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the paper's two losses, drawing from a copy of the learner's generator what the learner will draw."""
    generator = learner.generator.clone_state()
    model, alpha, settings = learner.model, learner.log_alpha.exp().item(), learner.settings
    with torch.no_grad():
        next_actions, next_log_probs = model.actor.sample(batch.next_observations, generator)
        subset = torch.rand(settings.num_critics, generator=generator).topk(settings.num_min_critics).indices.tolist()
        assert len(set(subset)) == 2
        values = [one_critic(model.target_critic, i, batch.next_observations, next_actions) for i in subset]
        backup = torch.minimum(*values)
        if backup_entropy:
            backup = backup - alpha * next_log_probs
        targets = batch.rewards + settings.gamma * (1 - batch.terminated) * backup
        critic_loss = torch.zeros(())
        for i in range(settings.num_critics):
            error = one_critic(model.critic, i, batch.observations, batch.actions) - targets
            critic_loss += (error**2).mean()
        actions, log_probs = model.actor.sample(batch.observations, generator)
        every = [one_critic(model.critic, i, batch.observations, actions) for i in range(settings.num_critics)]
        actor_loss = (alpha * log_probs - torch.stack(every).mean(dim=0)).mean()
    return critic_loss, actor_loss


@pytest.mark.parametrize("layer_norm", [True, False])
@pytest.mark.parametrize("backup_entropy", [True, False])
def test_rlpd_update(backup_entropy, layer_norm):
    options = {"backup_entropy": backup_entropy, "critic_layer_norm": layer_norm, "gamma": 0.9, "policy_delay": 1}
    learner = RLPD(SPEC, SMALL | options)
    for seed in range(3):  # so that targets and critics differ, and the temperature is not 1
        learner.update(random_batch(seed=seed))
    batch, alpha = random_batch(seed=9), learner.log_alpha.exp().item()
    assert alpha != 1.0
    critic_loss, actor_loss = reference_losses(learner, batch, backup_entropy)
    before, state = weights(learner), learner.generator.clone_state()
    found_critic, found_actor, metrics = rlpd_loss(learner, batch)
    torch.testing.assert_close(found_critic.detach(), critic_loss)
    torch.testing.assert_close(found_actor.detach(), actor_loss)
    torch.testing.assert_close(metrics["train/critic_loss"], critic_loss)
    torch.testing.assert_close(metrics["train/actor_loss"], actor_loss)
    assert moved(before, learner) == set()
    assert learner.update_count == 3

    # And an update is a step of Adam on them: the critics first, the actor on the new critics, then the targets.
    learner.generator.set_state(state.get_state())
    twin = copy.deepcopy(learner)
    twin.generator.set_state(state.get_state())
    metrics = learner.update(batch)
    torch.testing.assert_close(metrics["train/critic_loss"], critic_loss)
    for name, part in (("critic", twin.model.critic), ("actor", twin.model.actor)):
        loss = twin.critic_loss(batch)[0] if name == "critic" else twin.actor_loss(batch)[0]
        parameters = list(part.parameters())
        optimizer = torch.optim.Adam(parameters, lr=3e-4)
        moments = learner_moments(twin, name)
        optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
        gradients = torch.autograd.grad(loss, parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        for a, b in zip(parameters, getattr(learner.model, name).parameters(), strict=True):
            torch.testing.assert_close(a, b)
    for (name, target), source in zip(
        learner.model.target_critic.named_parameters(), learner.model.critic.parameters(), strict=True
    ):
        old = before[f"model.target_critic.{name}"]
        torch.testing.assert_close(target.detach(), 0.995 * old + 0.005 * source.detach())


def learner_moments(learner: RLPD, name: str) -> dict[int, dict[str, torch.Tensor]]:
    state = copy.deepcopy(learner.training_state()["optimizers"][name])
    return {int(index): values for index, values in state.items()}


def test_only_the_subset_is_evaluated_and_it_changes(monkeypatch):
    learner = RLPD(SPEC, SMALL)
    asked, forward = [], learner.model.target_critic.forward

    def watching(observations, actions, members=None):
        values = forward(observations, actions, members)
        asked.append((members.tolist(), values.shape[0]))
        return values

    monkeypatch.setattr(learner.model.target_critic, "forward", watching)
    for seed in range(30):
        learner.update(random_batch(seed=seed))
    assert len(asked) == 30
    assert all(len(set(members)) == 2 and evaluated == 2 for members, evaluated in asked)
    assert {member for members, _ in asked for member in members} == set(range(10))  # all of them have their turn


def test_without_a_subset_the_target_is_the_minimum_of_all():
    learner = RLPD(SPEC, SMALL | {"num_critics": 3, "num_min_critics": None})
    batch = random_batch()
    found = learner._target_minimum(batch.observations, batch.actions)
    members = [one_critic(learner.model.target_critic, i, batch.observations, batch.actions) for i in range(3)]
    torch.testing.assert_close(found.detach(), torch.stack(members).amin(0).detach())


def test_actor_and_temperature_move_together_once_per_environment_step():
    learner = RLPD(SPEC, SMALL | {"policy_delay": 5})
    for number in range(1, 11):
        before = weights(learner)
        metrics = learner.update(random_batch(seed=number))
        expected = {"model.critic", "model.target_critic"}
        if number % 5 == 0:
            expected |= {"model.actor", "log_alpha"}
        assert moved(before, learner) == expected
        assert ("train/actor_loss" in metrics) == ("train/alpha" in metrics) == (number % 5 == 0)


@pytest.mark.parametrize(
    ("options", "delay"),
    [
        ({}, 20),
        ({"gradient_updates_per_step": 4}, 4),
        ({"gradient_updates_per_step": 0.25}, 1),
        ({"gradient_updates_per_step": 4, "policy_delay": 2}, 2),
    ],
)
@pytest.mark.parametrize("algo", ["rlpd", "redq"])
def test_the_delay_follows_the_updates_per_step(algo, options, delay):
    values = {"algo": algo, "env_id": "Pendulum-v1", "total_timesteps": 9000, "algo_kwargs": options}
    assert parse_run(parse_config(values)).learner.policy_delay == delay


def test_the_papers_settings_are_the_defaults():
    learner = RLPD(SPEC, {"hidden_sizes": [16, 16]})
    assert (learner.settings.num_critics, learner.settings.num_min_critics) == (10, 2)
    assert learner.model.critic.members == learner.model.target_critic.members == 10
    assert learner.critic_layer_norm
    assert len(learner.model.critic.mlp.norms) == 2
    assert len(learner.model.actor.mlp.norms) == 0
    assert learner.backup_entropy
    assert len(RLPD(SPEC, SMALL | {"critic_layer_norm": False}).model.critic.mlp.norms) == 0
    # SAC, from which it derives, has none of it.
    plain = SAC(SPEC, {"hidden_sizes": [16, 16]})
    assert (plain.model.critic.members, len(plain.model.critic.mlp.norms), plain.settings.policy_delay) == (2, 0, 1)


@pytest.mark.parametrize("action_dim", [1, 2, 5])
def test_the_target_entropy_is_half_of_sacs(action_dim):
    spec = SpaceSpec(observation_dim=3, action_dim=action_dim)
    learner = RLPD(spec, SMALL)
    assert learner.target_entropy == -action_dim / 2
    assert SAC(spec, {"hidden_sizes": [8]}).target_entropy == -action_dim
    log_probs = torch.tensor([1.0, 3.0])
    with torch.no_grad():
        learner.log_alpha.fill_(0.7)
    torch.testing.assert_close(learner.alpha_loss(log_probs).item(), -0.7 * (2.0 - action_dim / 2))
    assert RLPD(spec, SMALL | {"target_entropy": -3.0}).target_entropy == -3.0


@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_a_fixed_temperature_stays(alpha):
    learner = RLPD(SPEC, SMALL | {"alpha": alpha, "policy_delay": 1})
    for seed in range(3):
        metrics = learner.update(random_batch(seed=seed))
    assert metrics["train/alpha"].item() == pytest.approx(alpha, rel=1e-5, abs=1e-9)
    batch = random_batch(seed=7)
    generator = learner.generator.clone_state()
    actions, log_probs = learner.model.actor.sample(batch.observations, generator)
    expected = alpha * log_probs.mean() - learner.model.critic(batch.observations, actions).mean()
    torch.testing.assert_close(learner.actor_loss(batch)[0], expected)


def test_an_automatic_temperature_rises_while_the_policy_is_too_narrow():
    learner = RLPD(SPEC, SMALL | {"policy_delay": 1, "target_entropy": 50.0, "initial_alpha": 0.1})
    assert learner.log_alpha.exp().item() == pytest.approx(0.1)
    for seed in range(5):
        learner.update(random_batch(seed=seed))
    high = learner.log_alpha.exp().item()
    assert high > 0.1
    learner.target_entropy = -50.0
    for seed in range(20):
        learner.update(random_batch(seed=seed))
    assert learner.log_alpha.exp().item() < high


def test_the_algorithm_has_two_names():
    assert RLPDAlgorithm is RLPD
    assert issubclass(RLPD, SAC)


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="num_min_critics = 5 is above num_critics = 4"):
        RLPD(SPEC, {"num_critics": 4, "num_min_critics": 5})
    with pytest.raises(ConfigError, match="RLPD needs continuous actions, but the task has discrete ones"):
        RLPD(SpaceSpec(observation_dim=3, action_dim=1, num_actions=4))
    with pytest.raises(ConfigError, match="num_critic"):
        RLPD(SPEC, {"num_critic": 4})


def test_the_loss_is_that_of_an_update_with_normalised_observations_too():
    learner, batch = RLPD(SPEC, SMALL | {"normalize_observations": True, "policy_delay": 1}), random_batch()
    learner.observe(batch.observations * 3 + 1)
    state = learner.generator.get_state()
    critic_loss, _, metrics = rlpd_loss(learner, batch)
    learner.generator.set_state(state)
    assert torch.equal(learner.update(batch)["train/critic_loss"], critic_loss.detach())
    assert critic_loss != learner.critic_loss(batch)[0]
    assert {"train/q_mean", "train/entropy"} <= metrics.keys()


def test_values_of_prior_and_fresh_rows_are_told_apart():
    learner, batch = RLPD(SPEC, SMALL), random_batch(offline_rows=10)
    values = learner.model.critic(batch.observations, batch.actions).detach()
    metrics = learner.update(batch)
    torch.testing.assert_close(metrics["train/q_offline"], values[:, :10].mean())
    torch.testing.assert_close(metrics["train/q_online"], values[:, 10:].mean())
    torch.testing.assert_close(metrics["train/q_mean"], values.mean())
    assert "train/q_offline" not in learner.update(random_batch())
    assert not {"train/q_offline", "train/q_online"} & learner.update(random_batch(offline_rows=24)).keys()


# Demonstrations


DEMONSTRATORS = [
    pytest.param(SAC, {"alpha": 0.0}, id="sac"),
    pytest.param(TD3, {}, id="td3"),
    pytest.param(RLPD, {"alpha": 0.0}, id="rlpd"),
]


class ByAction(torch.nn.Module):
    """Critics that value an action by its first number, and know which rows they would rather have otherwise."""

    def __init__(self, members: int, signs: torch.Tensor) -> None:
        super().__init__()
        self.members, self.signs = members, signs
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, observations, actions, members=None, *, fixed=False):
        signs = self.signs.repeat(len(actions) // len(self.signs))
        count = self.members if members is None else len(members)
        return (self.weight * signs * actions[:, 0]).expand(count, -1)


def mode(learner, observations: torch.Tensor) -> torch.Tensor:
    return learner.act(observations, deterministic=True)


@pytest.mark.parametrize("q_filter", [False, True])
@pytest.mark.parametrize(("learner_type", "options"), DEMONSTRATORS)
def test_the_actor_is_drawn_to_prior_actions(learner_type, options, q_filter):
    batch = random_batch(offline_rows=12)
    batch = batch._replace(actions=torch.tensor([0.9, -0.7]).expand_as(batch.actions))
    settings = {"hidden_sizes": [16, 16], "policy_delay": 1, "learning_rate": 3e-3, "bc_q_filter": q_filter}

    def distance(bc_weight: float, offline_rows: int) -> float:
        learner = learner_type(SPEC, settings | options | {"bc_weight": bc_weight})
        # Values rise with the first action, so the filter lets all of these demonstrations pass; the critics stay.
        learner.model.critic = ByAction(learner.settings.num_critics, torch.full((12,), 1e-3))
        for _ in range(60):
            loss = learner.actor_loss(batch._replace(offline_rows=offline_rows))[0]
            learner._minimize(loss, learner.actor_optimizer)
        return (mode(learner, batch.observations)[:12, 1] + 0.7).abs().mean().item()  # they do not value this one

    drawn, free = distance(10.0, 12), distance(0.0, 12)
    assert drawn < 0.2
    assert free > 0.4
    assert distance(10.0, 0) == free  # without prior rows there is nothing to imitate


@pytest.mark.parametrize(("learner_type", "options"), DEMONSTRATORS)
def test_the_filter_passes_only_what_is_valued_above_the_actors_own_action(learner_type, options):
    learner = learner_type(SPEC, {"hidden_sizes": [16, 16], "bc_weight": 2.0, "policy_delay": 1} | options)
    batch = random_batch(offline_rows=12)
    own = mode(learner, batch.observations)[:12]
    demonstrated = torch.full_like(batch.actions, 0.9)  # above any action of a new actor
    batch = batch._replace(actions=demonstrated)
    assert (own < 0.9).all()
    signs = torch.tensor([1.0, -1.0, -1.0] * 4)  # one row in three is valued by its height, the others against it
    learner.model.critic = ByAction(learner.settings.num_critics, signs)
    errors = (own - 0.9).square().mean(dim=1)
    expected = (errors * (signs > 0)).sum() / 12
    metrics = learner.actor_loss(batch)[-1]
    torch.testing.assert_close(metrics["train/bc_loss"], expected)
    learner.settings = learner.settings.model_copy(update={"bc_q_filter": False})
    torch.testing.assert_close(learner.actor_loss(batch)[-1]["train/bc_loss"], errors.mean())
    assert "train/bc_loss" not in learner.actor_loss(batch._replace(offline_rows=0))[-1]


@pytest.mark.parametrize(("learner_type", "options"), DEMONSTRATORS)
def test_rows_that_the_filter_stops_leave_the_actor_alone(learner_type, options):
    """The gradient of the cloning term comes from the rows that pass, and from no other."""
    learner = learner_type(SPEC, {"hidden_sizes": [16, 16], "bc_weight": 1.0} | options)
    batch = random_batch(offline_rows=12)
    batch = batch._replace(actions=torch.full_like(batch.actions, 0.9))
    signs = torch.tensor([1.0, -1.0, -1.0] * 4)
    learner.model.critic = ByAction(learner.settings.num_critics, signs)
    own = mode(learner, batch.observations)[:12].requires_grad_()
    loss = learner._cloning_loss(batch, own, q_filter=True)
    assert loss.requires_grad, "the filtered cloning loss has no gradient"
    (gradient,) = torch.autograd.grad(loss, own)
    expected = (own.detach() - 0.9) / 12 * (signs > 0)[:, None]  # of the mean over rows of the mean over two actions
    torch.testing.assert_close(gradient, expected)
