"""The model card of a bundle, with the metadata that the Hugging Face hub reads."""

from __future__ import annotations

from typing import Any

import yaml

from rl_training.export.contract import Contract, Port

_USE = """\
## Use it

`example.py` needs Python 3.10, numpy and onnxruntime, and nothing else:

```bash
pip install numpy onnxruntime
python example.py
```

`ros2_node.py` is the same policy as a small ROS 2 node. With rl_training installed, `rl-training verify .` checks that
this folder is complete and computes what the trained policy computed, and `rl-training evaluate .` plays episodes.
"""

_FILES = """\
## Files

| File | Content |
|---|---|
| `policy.onnx` | the policy; normalisation and scaling to the action bounds are inside |
| `policy.safetensors` | its weights |
| `contract.json` | inputs, outputs, bounds, normaliser, training facts and checksums |
| `golden.npz` | 256 random inputs with the outputs of the trained policy |
| `example.py`, `ros2_node.py` | how to run it |

The policy returns an action for any input, also for one that it never saw in training. Check inputs, limit actions and
stop safely in your own code before you run it on a robot.
"""


def model_card(contract: Contract) -> str:
    """Return the card as Markdown, with its metadata as YAML at the top."""
    training, task = contract.training, contract.task
    name = f"{training['learner']}{' with HER' if training['algorithm'] == 'her' else ''}"
    where = f"`{task.env_id}`" if task.env_id is not None else "logged data"
    ports = "\n".join(_row("input", port) for port in contract.inputs)
    ports += "\n" + "\n".join(_row("output", port) for port in contract.outputs)
    sampling = f"\nTo draw an action at random: `{contract.policy.sampling}`.\n" if contract.policy.sampling else ""
    results = "\n".join(
        f"| `{metric}` | {value:.4g} |" for metric, value in training["evaluation"].items() if value is not None
    )
    evaluation = f"| Evaluation of this checkpoint | |\n|---|---|\n{results}\n\n" if results else ""
    config = yaml.safe_dump(training["config"], sort_keys=False)
    return (
        f"---\n{yaml.safe_dump(hub_metadata(contract), sort_keys=False)}---\n\n"
        f"# {name} on {where}\n\n"
        f"A policy trained by rl_training for {training['global_step']:,} steps and"
        f" {training['update_count']:,} updates, with seed {training['seed']}.\n\n{evaluation}"
        f"## Inputs and outputs\n\n| | Name | Type | Shape | Units | Bounds |\n|---|---|---|---|---|---|\n{ports}\n"
        f"{sampling}\n{_USE}\n{_FILES}\n"
        f"## Configuration\n\n```yaml\n{config}```\n"
    )


def hub_metadata(contract: Contract) -> dict[str, Any]:
    """Return the card's metadata: tags, and a model index with the evaluation of the checkpoint."""
    training, env_id = contract.training, contract.task.env_id
    tags = ["reinforcement-learning", "deep-reinforcement-learning", "onnx", training["algorithm"]]
    if env_id is not None:
        tags.append(env_id)
    metadata: dict[str, Any] = {
        "library_name": "rl_training",
        "pipeline_tag": "reinforcement-learning",
        "tags": list(dict.fromkeys(tags)),
    }
    evaluation = training["evaluation"]
    if env_id is None or evaluation.get("eval/mean_reward") is None:
        return metadata
    spread = evaluation.get("eval/std_reward")
    reward = f"{evaluation['eval/mean_reward']:.2f}" + (f" +/- {spread:.2f}" if spread is not None else "")
    metrics = [{"type": "mean_reward", "value": reward, "name": "mean_reward", "verified": False}]
    if evaluation.get("eval/success_rate") is not None:
        rate = float(evaluation["eval/success_rate"])
        metrics.append({"type": "success_rate", "value": rate, "name": "success_rate", "verified": False})
    result = {
        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
        "dataset": {"name": env_id, "type": env_id},
        "metrics": metrics,
    }
    return {**metadata, "model-index": [{"name": training["learner"], "results": [result]}]}


def _row(kind: str, port: Port) -> str:
    bounds = ""
    if port.low is not None and port.high is not None:
        bounds = ", ".join(f"[{low:g}, {high:g}]" for low, high in zip(port.low, port.high, strict=True))
    label = f"{kind}, optional" if port.optional else kind
    shape = f"[{', '.join(map(str, port.shape))}]"
    return f"| {label} | `{port.name}` | {port.dtype} | {shape} | {port.units} | {bounds} |"
