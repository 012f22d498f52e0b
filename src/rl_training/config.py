"""Configurations: YAML files and presets, overrides, validation, and errors that name the key.

``TrainConfig`` holds the keys that every run has. The keys of ``algo_kwargs`` are those of the ``Settings`` classes,
which are declared in the modules that use them; ``runtime.settings`` sorts and checks them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from rl_training.errors import ConfigError, did_you_mean, shown
from rl_training.urls import Location, download_file, is_url, parse_location
from rl_training.yaml_text import dump_yaml, parse_yaml

PRESET_DIR = Path(__file__).parent / "assets" / "configs"

_YAML_BYTES = 1 << 20

_TYPE_TAGS = {"float", "int", "str", "bool", "constrained"}

_OTHER_LIBRARIES = {
    "actor_learning_rate": "here: actor_lr",
    "buffer_size": "here: algo_kwargs.buffer_capacity",
    "critic_learning_rate": "here: critic_lr",
    "discount": "here: algo_kwargs.gamma",
    "ent_coef": "here: algo_kwargs.alpha, a number or auto",
    "env": "here: env_id",
    "epsilon": "here: algo_kwargs.random_action_prob",
    "exploration_fraction": "here: algo_kwargs.random_action_prob, which takes a schedule",
    "gradient_steps": "here: algo_kwargs.gradient_updates_per_step, per environment step",
    "her_k": "here: algo_kwargs.n_sampled_goal",
    "lr": "here: algo_kwargs.learning_rate",
    "max_steps": "here: total_timesteps; the length of an episode belongs to env_kwargs",
    "n_episodes": "here: total_timesteps, counted in environment steps",
    "n_steps": "here: total_timesteps",
    "net_arch": "here: algo_kwargs.hidden_sizes, a list",
    "noise_std": "here: algo_kwargs.exploration_noise",
    "num_episodes": "here: total_timesteps, counted in environment steps",
    "polyak": "here: algo_kwargs.tau, which is 1 - polyak",
    "policy_kwargs": "here: algo_kwargs.hidden_sizes, a list of layer sizes",
    "replay_buffer_size": "here: algo_kwargs.buffer_capacity",
    "replay_k": "here: algo_kwargs.n_sampled_goal",
    "start_learning_after": "here: algo_kwargs.learning_starts",
    "start_steps": "here: algo_kwargs.learning_starts",
    "timesteps": "here: total_timesteps",
    "train_freq": "here: algo_kwargs.train_frequency",
    "updates_per_step": "here: algo_kwargs.gradient_updates_per_step",
    "utd_ratio": "here: algo_kwargs.gradient_updates_per_step",
    "warmup_steps": "here: algo_kwargs.learning_starts",
}
"""Names in other libraries and papers, and the names here."""

SettingsT = TypeVar("SettingsT", bound="Settings")


class Settings(BaseModel):
    """Base of all settings: typed, immutable, and closed to unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True, defer_build=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_yes_or_no_for_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse ``true`` where a number is expected: YAML reads yes, no, on and off as truth values."""
        annotation = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and bool not in (annotation, *get_args(annotation)):
            raise ValueError("expected a number or text, not true or false")
        return value


class TrainConfig(Settings):
    """One training run: what to train, where, for how long, and with which settings."""

    algo: str = Field(description="a registered algorithm, e.g. her")
    env_id: str | None = Field(None, description="a Gymnasium environment id; optional for offline runs")
    seed: int = Field(0, ge=0, le=2**32 - 1, description="seed of all random numbers of the run")
    total_timesteps: int = Field(gt=0, description="environment transitions over all environments; offline, updates")
    output_dir: Location = Field(
        Path("runs"),
        description="folder in which the run's folder is created: a path, or a URL such as s3://bucket/runs",
    )
    device: str = Field("cpu", description="cpu, cuda, cuda:N, or auto (cuda if available)")
    precision: Literal["fp32", "tf32", "bf16"] | None = Field(
        None, description="arithmetic of matrix products on CUDA; unset: tf32; the weights are float32 in any case"
    )
    compile: Literal["auto"] | bool = Field(
        "auto",
        description="compile the updates: the first takes longer, the others less time; auto: on CUDA, and on a CPU in"
        " runs of 50,000 updates or more",
    )
    num_threads: int = Field(
        1, ge=1, le=1024, description="torch threads; more than one helps only if no other process needs the cores"
    )
    use_free_cores: bool = Field(
        True, description="with one thread on a CPU, use a second core for updates while it is idle"
    )
    num_envs: int = Field(1, ge=1, le=4096, description="environments that collect data together")
    num_workers: int = Field(
        0, ge=0, le=100_000, description="Ray actors that play episodes for the learner; 0: it plays them itself"
    )
    ray_address: str | None = Field(
        None, description="the Ray cluster of num_workers: auto, or host:port; unset: RAY_ADDRESS, else this machine"
    )
    loggers: tuple[Literal["tensorboard", "csv", "wandb", "mlflow"], ...] = Field(
        ("tensorboard", "csv"),
        description="where metrics go; csv is always among them, because resume and the report read metrics.csv",
    )
    eval_episodes: int = Field(20, ge=1, le=1_000_000, description="episodes of one evaluation")
    env_kwargs: dict[str, Any] = Field(
        default_factory=dict,
        description="arguments of the environment, and this package's keys such as wrappers.reward",
    )
    algo_kwargs: dict[str, Any] = Field(default_factory=dict, description="settings of the algorithm and of the loop")

    @field_validator("output_dir", mode="plain")
    @classmethod
    def _path_or_url(cls, value: Any) -> Location:
        return parse_location(value)

    @field_validator("loggers")
    @classmethod
    def _csv_always(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*value, "csv"]))

    def to_yaml(self) -> str:
        """Return the configuration as YAML that ``load_config`` reads back."""
        return dump_yaml(self.model_dump(mode="json"))


def load_config(source: str | Path, overrides: Iterable[str] = ()) -> TrainConfig:
    """Read a preset (``her/point_reach``) or a YAML file, also at a URL, with ``key.path=value`` overrides on top."""
    values = read_yaml(config_path(source))
    return parse_config(parse_overrides(overrides, values), where=str(source))


def parse_overrides(overrides: Iterable[str], values: dict[str, Any] | None = None) -> dict[str, Any]:
    """Set each ``key.path=value`` in ``values``, or in an empty mapping, and return it."""
    values = {} if values is None else values
    for override in overrides:
        _apply_override(values, override)
    return values


def parse_config(values: Mapping[str, Any], where: str = "config") -> TrainConfig:
    """Validate a mapping as a ``TrainConfig``."""
    _require_text(values, where)
    return parse_settings(TrainConfig, values, where=where)


def parse_settings(
    settings_type: type[SettingsT], values: Mapping[str, Any], where: str, prefix: str = ""
) -> SettingsT:
    """Validate ``values``; the error names each wrong key, its value, what was expected and the nearest name."""
    settings, problems = check_settings(settings_type, values, prefix)
    if settings is None:
        raise ConfigError("\n".join(f"{where}: {problem}" for problem in problems))
    return settings


def check_settings(
    settings_type: type[SettingsT], values: Mapping[str, Any], prefix: str = ""
) -> tuple[SettingsT | None, list[str]]:
    """Return the settings, or None and a line for each wrong key."""
    try:
        return settings_type.model_validate(dict(values)), []
    except ValidationError as error:
        return None, _explain(error, settings_type, prefix)


def _require_text(value: Any, where: str, key: str = "") -> None:
    """Refuse texts that no file system takes as a path, in any setting."""
    if isinstance(value, (str, Path)) and any(char == "\0" or "\ud800" <= char <= "\udfff" for char in str(value)):
        raise ConfigError(f"{where}: {key} = {shown(value)}: expected a text without NUL and surrogate characters")
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, (list, tuple)):
        parts = enumerate(value)
    for name, part in parts:
        _require_text(part, where, f"{key}.{name}" if key else str(name))


def unknown_key(key: str, names: Iterable[str], prefix: str = "") -> str:
    """Return the message about an unknown key, with the nearest name or the name here of another library's key."""
    hint = did_you_mean(key, names)
    if key in _OTHER_LIBRARIES:
        hint = f" ({_OTHER_LIBRARIES[key]})"
    return f"unknown key {prefix + key!r}{hint}"


def config_path(source: str | Path) -> Path:
    """Return the file behind a preset name, a path or a URL."""
    name = str(source)
    if is_url(name):
        return download_file(name)
    if name in preset_names():
        return PRESET_DIR / f"{name}.yaml"
    path = Path(source)
    if path.is_file():
        return path
    if path.suffix in {".yaml", ".yml"} or path.exists():
        raise ConfigError(f"no configuration file {name!r}")
    raise ConfigError(
        f"no preset or file {name!r}{did_you_mean(name, preset_names())}; `rl-training presets` lists them"
    )


def preset_names() -> list[str]:
    """Return the names of the presets that ship with the package, such as ``her/point_reach``."""
    return sorted(str(path.relative_to(PRESET_DIR).with_suffix("").as_posix()) for path in PRESET_DIR.glob("*/*.yaml"))


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping without constructing anything but plain values."""
    name = shown(path)
    try:
        if path.stat().st_size > _YAML_BYTES:
            raise ConfigError(f"{name}: larger than {_YAML_BYTES:,} bytes; expected a configuration")
        values = parse_yaml(path.read_text(encoding="utf-8"))
    except ConfigError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: cannot be read: {shown(error)}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"{name}: not valid YAML: {shown(' '.join(str(error).split()))}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{name}: expected a mapping of keys to values, found {type(values).__name__}")
    return values


def _apply_override(values: dict[str, Any], override: str) -> None:
    """Set ``a.b.c=value`` in nested mappings; the value is read as YAML."""
    key, separator, text = override.partition("=")
    parts = key.strip().split(".")
    if not separator or not all(parts):
        raise ConfigError(f"--set {override!r}: expected key.path=value, e.g. algo_kwargs.batch_size=128")
    try:
        value = parse_yaml(text)
    except (yaml.YAMLError, RecursionError, ValueError):
        raise ConfigError(f"--set {key}: {text!r} is not a YAML value") from None
    target = values
    for part in parts[:-1]:
        if target.get(part) is None:  # an empty section reads as None
            target[part] = {}
        child = target[part]
        if not isinstance(child, dict):
            raise ConfigError(f"--set {key}: {part!r} holds {child!r}, which has no keys below it")
        target = child
    target[parts[-1]] = value


def parse_seeds(text: str, where: str) -> list[int]:
    """Read ``0-4`` or ``0,3,7``; ``where`` names the option or key in the message."""
    if match := re.fullmatch(r"(\d+)-(\d+)", text):
        first, last = int(match[1]), int(match[2])
        if first <= last < first + 1000:
            return list(range(first, last + 1))
    if re.fullmatch(r"\d+(,\d+)*", text):
        return list(dict.fromkeys(int(part) for part in text.split(",")))
    raise ConfigError(f"{where} {text!r}: expected a range such as 0-4 or a list such as 0,3,7")


def _explain(error: ValidationError, settings_type: type[BaseModel], prefix: str) -> list[str]:
    """Turn pydantic's findings into one line per key."""
    lines: dict[str, str] = {}
    for finding in error.errors(include_url=False):
        # The alternatives of a union are reported one by one, each with a tag in its path that is not a field.
        place = [str(part) for part in finding["loc"]]
        path = [part for part in place if re.fullmatch(r"\w+", part) and part not in _TYPE_TAGS]
        if finding["type"] == "extra_forbidden" and path[-1:] != place[-1:]:
            path.append(place[-1])  # a key that is unknown may be any text, such as batch-size
        key = prefix + (".".join(path) or "value")
        if finding["type"] == "extra_forbidden":
            parents = prefix + "".join(f"{part}." for part in path[:-1])
            lines[key] = unknown_key(path[-1], _fields_at(settings_type, path[:-1]), parents)
            if not prefix and not lines[key].endswith(")"):
                lines[key] += "; an algorithm's settings go under algo_kwargs"
            continue
        if finding["type"] == "missing":
            lines[key] = f"key {key!r} is required and missing"
            continue
        expected = _plain(finding["msg"])
        if key in lines:
            lines[key] += " or " + expected.removeprefix("expected ")
        elif finding["type"] == "value_error" and not path:
            named = expected.split(" ")[0] in settings_type.model_fields
            lines[key] = prefix + expected if named else expected
        else:
            lines[key] = f"{key} = {finding['input']!r}: {expected}"
    # If a nested key is wrong, drop the union's complaint that the value is not a number.
    return [line for key, line in lines.items() if not any(other.startswith(f"{key}.") for other in lines)]


def _plain(message: str) -> str:
    """Reword pydantic's message for a YAML file."""
    message = re.sub(r" or instance of \w+", "", message.removeprefix("Value error, "))
    message = message.replace("Input should be", "expected").replace("dictionary", "mapping")
    return message.replace("Tuple", "the list").replace("tuple", "list")


def _fields_at(settings_type: type[BaseModel], path: list[str]) -> list[str]:
    """Return the field names that are valid below ``path``."""
    current: Any = settings_type
    for part in path:
        field = current.model_fields.get(part) if isinstance(current, type) and issubclass(current, BaseModel) else None
        if field is None:
            continue
        candidates = [field.annotation, *getattr(field.annotation, "__args__", ())]
        current = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
    return list(current.model_fields) if isinstance(current, type) and issubclass(current, BaseModel) else []


def differences(then: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[tuple[str, Any, Any]]:
    """Return the keys, with both values, in which two configurations differ."""
    found: list[tuple[str, Any, Any]] = []
    for key in {**then, **now}:
        old, new = then.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += differences(old, new, f"{prefix}{key}.")
        elif old != new:
            found.append((f"{prefix}{key}", old, new))
    return found
