"""`make demo`: train her/point_reach, evaluate it on 100 episodes, and say where everything is."""

from rl_training import HER

model = HER.from_preset("point_reach")
print(f"Training {model.config.env_id} for {model.config.total_timesteps:,} steps, about a minute.", flush=True)
result = model.learn(progress_bar=True)
metrics = model.evaluate(episodes=100)
print(f"success rate   {metrics['eval/success_rate']:.2f} over 100 new episodes")
print(f"run            {result.run_dir}")
print(f"checkpoint     {model.checkpoint}")
print(f"plots          {result.run_dir / 'report.html'}")
