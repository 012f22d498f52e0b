"""Run this policy with numpy and onnxruntime alone: ``python example.py``."""

import json
from pathlib import Path

import numpy as np
import onnxruntime as ort

FOLDER = Path(__file__).resolve().parent
CONTRACT = json.loads((FOLDER / "contract.json").read_text(encoding="utf-8"))

OPTIONS = ort.SessionOptions()
OPTIONS.intra_op_num_threads = OPTIONS.inter_op_num_threads = 1  # a network this small is fastest on one core
SESSION = ort.InferenceSession(str(FOLDER / "policy.onnx"), OPTIONS, providers=["CPUExecutionProvider"])


def act(*inputs: np.ndarray) -> np.ndarray:
    """Return the action for one observation (goal tasks: observation, desired goal), in the environment's own units."""
    names = [item["name"] for item in CONTRACT["inputs"]]
    batch = {name: np.asarray(value, np.float32)[None] for name, value in zip(names, inputs, strict=True)}
    return SESSION.run(["action"], batch)[0][0]


if __name__ == "__main__":
    golden = np.load(FOLDER / "golden.npz")
    rows = zip(*(golden[item["name"]] for item in CONTRACT["inputs"]), strict=True)
    actions = np.stack([act(*row) for row in rows])
    print(f"{len(actions)} actions; the first is {actions[0]}")
    print(f"largest difference from the trained policy: {np.abs(actions - golden['action']).max():.1e}")
