"""`make demo`: train her/point_reach, evaluate it on 100 episodes, and say where everything is."""

import sys

from rl_training import HER

STEPS, EPISODES = map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (7_500, 100)

model = HER.from_preset("point_reach", total_timesteps=STEPS)
print(f"Training {model.config.env_id} for {model.config.total_timesteps:,} steps, about a minute.", flush=True)
result = model.learn(progress_bar=True)
metrics = model.evaluate(episodes=EPISODES)
print(f"success rate   {metrics['eval/success_rate']:.2f} over {EPISODES} new episodes")
print(f"run            {result.run_dir}")
print(f"checkpoint     {model.checkpoint}")
print(f"plots          {result.run_dir / 'report.html'}")
