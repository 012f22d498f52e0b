"""Learn a policy offline, then improve it by playing: IQL on random play in Pendulum, continued in the environment."""

import sys

from rl_training import IQL

UPDATES = int(sys.argv[1]) if len(sys.argv) > 1 else 4_000
STEPS = UPDATES // 2

small = {"hidden_sizes": [64, 64], "dataset_size": 5 * UPDATES, "eval_interval": UPDATES}
offline = IQL.from_preset("pendulum", total_timesteps=UPDATES, eval_episodes=5, algo_kwargs=small)
first = offline.learn()
print(f"offline: mean return {first.metrics['eval/mean_reward']:.0f} after {first.update_count:,} updates")

# Half of each batch is still offline data, and the loaded policy acts from the first step.
online = {
    **small,
    "online": True,
    "init_from": str(first.run_dir),
    "eval_interval": STEPS,
    "learning_starts": STEPS // 20,
}
tuned = IQL.from_preset("pendulum", total_timesteps=STEPS, eval_episodes=5, algo_kwargs=online)
second = tuned.learn()
change = second.metrics["eval/mean_reward"] - first.metrics["eval/mean_reward"]
print(
    f"online: mean return {second.metrics['eval/mean_reward']:.0f} after {second.global_step:,} steps ({change:+.0f})"
)
print(f"runs: {first.run_dir} {second.run_dir}")
