"""Speed beside Stable-Baselines3 and SBX: `make bench`, or `python benchmarks/speed.py --quick`.

Every side runs in a process of its own (benchmarks/speed_side.py). The sides take turns in many short rounds, so that a
slow moment of the machine hits all of them; the table gives the median of the rounds, and the median and the quartiles
of the ratio within a round. Sampling and updates: 100,000 transitions of FetchPush's shape, networks 2x256, batch 256,
critics without LayerNorm, hindsight ratio 0.8, two threads on all sides. Training: each side's defaults. A peer that is
not installed is left out with a message.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NAMES = {"rl_training": "rl_training", "sb3": "Stable-Baselines3", "sbx": "SBX"}
WORK = {
    "sample 256 hindsight transitions": ("sample:sac+her", ["rl_training", "sb3"]),
    "DDPG + HER, sample + update": ("update:ddpg+her", list(NAMES)),
    "TD3 + HER, sample + update": ("update:td3+her", list(NAMES)),
    "SAC + HER, sample + update": ("update:sac+her", list(NAMES)),
    "SAC, sample + update": ("update:sac", list(NAMES)),
}
TRAINING = {
    "FetchReach-v4, SAC + HER, training steps": ("train:FetchReach-v4", list(NAMES)),
    "PointReach2D, SAC + HER, training steps": ("train:rl_training/PointReach2D-v0", list(NAMES)),
}
IMPORTS = {
    "rl_training": "from rl_training import HER",
    "torch": "import torch",
    "sb3": "from stable_baselines3 import SAC",
    "sbx": "from sbx import SAC",
}
BUSY = "import itertools\nfor _ in itertools.count(): pass"
WARM_UP_STEPS = 1_500  # past the random steps at the start, and past the first look at the free cores


class Side:
    """A process that works on request."""

    def __init__(self, name: str, work: str, pythons: dict[str, str], arguments: Sequence[str]) -> None:
        self.name, self._errors = name, tempfile.TemporaryFile("w+")  # noqa: SIM115  # open as long as the process
        command = [pythons[name], str(HERE / "speed_side.py"), name, work, *arguments]
        started = time.perf_counter()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=environment()
        )
        self.facts = self._answer()
        self.start_seconds = time.perf_counter() - started

    def rate(self, count: int) -> float:
        """Return repetitions per second over ``count`` of them."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        return count / self._answer()["seconds"]

    def close(self) -> float:
        """End the process and return the most memory it used, in megabytes."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        peak: float = self._answer()["peak_megabytes"]
        self._process.wait()
        return peak

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            raise RuntimeError((self._errors.read().strip().splitlines() or ["no message"])[-1])
        return dict(json.loads(line))


def environment() -> dict[str, str]:
    """Return the environment of a side: its own defaults decide on threads."""
    free = {key: value for key, value in os.environ.items() if key not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    return {**free, "MUJOCO_GL": os.environ.get("MUJOCO_GL", "disabled")}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median and the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return {"median": middle, "low": low, "high": high}


def compare(title: str, work: str, names: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """Let the sides take turns and return their rates, and our rate divided by each of theirs."""
    training = work.startswith("train:")
    arguments = [] if training else ["--threads", str(options.threads), "--device", options.device]
    sides: dict[str, Side] = {}
    missing: dict[str, str] = {}
    for name in names:
        try:
            sides[name] = Side(name, work, options.pythons, arguments)
        except (OSError, RuntimeError) as error:
            missing[name] = str(error)
            print(f"{title}: {NAMES[name]} is left out: {error}", file=sys.stderr)
    counts = {}
    for name, side in sides.items():
        rate = side.rate(WARM_UP_STEPS if training else 50)
        # A run decides every two seconds whether a core is free, so its rounds are longer.
        counts[name] = max(5, round(rate * options.seconds * (10 if training else 1)))
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(options.rounds):
        for name in sorted(sides, reverse=bool(number % 2)):
            rates[name].append(sides[name].rate(counts[name]))
    row: dict[str, Any] = {"name": title, "missing": missing}
    row["facts"] = {name: side.facts for name, side in sides.items()}
    if training:
        row["start_seconds"] = {name: side.start_seconds for name, side in sides.items()}
        if options.busy:
            row["busy_share"] = busy_share(sides, rates)
    row["per_second"] = {name: spread(values) for name, values in rates.items()}
    ours = rates.get("rl_training", [])
    others = [name for name in rates if name != "rl_training" and ours]
    row["ratio"] = {name: spread([a / b for a, b in zip(ours, rates[name], strict=True)]) for name in others}
    row["peak_megabytes"] = {name: side.close() for name, side in sides.items()}
    return row


def busy_share(sides: dict[str, Side], rates: dict[str, list[float]]) -> dict[str, float]:
    """Return which share of each rate is left while another process is busy on one core."""
    busy = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(busy.pid, {min(os.sched_getaffinity(0))})
        time.sleep(0.5)
        return {name: side.rate(30) / statistics.median(rates[name]) for name, side in sides.items()}
    finally:
        busy.kill()
        busy.wait()


def import_times(options: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of each import in a new process, and their ratio to that of torch in the same round."""
    pythons = {"torch": sys.executable, **options.pythons}
    seconds: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(options.rounds):
        for name in list(seconds):
            started = time.perf_counter()
            try:
                done = subprocess.run([pythons[name], "-c", IMPORTS[name]], capture_output=True, env=environment())
            except OSError:
                done = None
            seconds[name].append(time.perf_counter() - started)
            if done is None or done.returncode:
                del seconds[name]
    ratio = {n: spread([a / b for a, b in zip(s, seconds["torch"], strict=True)]) for n, s in seconds.items()}
    return {"seconds": {name: spread(values) for name, values in seconds.items()}, "ratio_to_torch": ratio}


def machine() -> dict[str, Any]:
    """Return the machine's facts."""
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    return {"processor": model, "cores": cores, "system": platform.system(), "load_at_start": load}


def markdown(result: dict[str, Any]) -> str:
    """Return the result as Markdown tables."""
    facts = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in result["machine"].items())
    threads = f"{result['threads']} threads" if result["device"] == "cpu" else result["device"]
    lines = [f"Machine: {facts}. Updates: {threads}. {result['rounds']} rounds.", ""]
    lines += [
        "| per second | rl_training | Stable-Baselines3 | SBX | times SB3 | times SBX |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        rates = [_cell(row["per_second"].get(name), "{median:,.0f}") for name in NAMES]
        ratios = [_cell(row["ratio"].get(name), "{median:.2f} ({low:.2f}–{high:.2f})") for name in ("sb3", "sbx")]
        lines.append(f"| {' | '.join([row['name'], *rates, *ratios])} |")
    training = [row for row in result["rows"] if "start_seconds" in row]
    if training:
        lines += ["", "| training | rl_training | Stable-Baselines3 | SBX |", "|---|---|---|---|"]
        for row in training:
            where = row["name"].partition(",")[0]
            for key, text in (
                ("start_seconds", "start to first step, s"),
                ("peak_megabytes", "peak memory, MB"),
                ("busy_share", "share of the rate left beside a busy process"),
            ):
                if key in row:
                    form = "{:,.0f}" if key == "peak_megabytes" else "{:.2f}"
                    cells = [form.format(row[key][name]) if name in row[key] else "" for name in NAMES]
                    lines.append(f"| {where}: {text} | {' | '.join(cells)} |")
    if "imports" in result:
        lines += ["", "| import | seconds | times `import torch` |", "|---|---|---|"]
        for name, seconds in result["imports"]["seconds"].items():
            ratio = _cell(result["imports"]["ratio_to_torch"][name], "{median:.2f} ({low:.2f}–{high:.2f})")
            lines.append(f"| `{IMPORTS[name]}` | {seconds['median']:.2f} | {ratio} |")
    return "\n".join(lines) + "\n"


def _cell(values: dict[str, float] | None, form: str) -> str:
    return "" if values is None else form.format(**values)


def main() -> None:
    """Run all comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, or cuda: updates alone, and benchmarks/device_speed.py")
    parser.add_argument("--threads", type=int, default=2, help="torch threads of sampling and updates")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one round of one side")
    parser.add_argument("--quick", action="store_true", help="3 short rounds, to see that everything runs")
    parser.add_argument("--only", help="only rows whose name contains this text")
    parser.add_argument("--busy", action="store_true", help="also train beside a busy process; peers take long then")
    parser.add_argument("--sbx-python", default=".venv-sbx/bin/python", help="an interpreter that has sbx-rl")
    parser.add_argument("--output", type=Path, default=Path("build/speed.json"), help="JSON; a table goes beside it")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 3, 0.1
    options.pythons = {"rl_training": sys.executable, "sb3": sys.executable, "sbx": options.sbx_python}
    result: dict[str, Any] = {"machine": machine(), "device": options.device, "rounds": options.rounds}
    result |= {"threads": options.threads, "rows": []}
    on_gpu = options.device != "cpu"
    for title, (work, names) in (WORK if on_gpu else {**WORK, **TRAINING}).items():
        if options.only is None or options.only in title:
            names = [name for name in names if not (on_gpu and name == "sbx")]  # its processes see no GPU
            result["rows"].append(compare(title, work, names, options))
            print(f"done: {title}", file=sys.stderr)
    if not on_gpu and (options.only is None or options.only in "import"):
        result["imports"] = import_times(options)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    options.output.with_suffix(".md").write_text(markdown(result))
    print(markdown(result))
    print(f"written: {options.output} and {options.output.with_suffix('.md')}", file=sys.stderr)
    if on_gpu:
        subprocess.run([sys.executable, str(HERE / "device_speed.py"), "--device", options.device], check=True)


if __name__ == "__main__":
    main()
