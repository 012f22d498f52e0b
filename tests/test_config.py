"""Reading configurations: YAML, overrides, presets, and errors that name the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.config import TrainConfig, config_path, load_config, parse_config, preset_names, read_yaml
from rl_training.errors import ConfigError
from rl_training.runtime.settings import complete_config, parse_run, read_config

BASE: dict[str, Any] = {"algo": "her", "env_id": "rl_training/PointGoal1D-v0", "total_timesteps": 3000}
PRESETS = [
    "ddpg/pendulum",
    "dqn/cartpole",
    "her/bit_flipping",
    "her/fetch_reach",
    "her/point_goal",
    "her/point_reach",
    "sac/pendulum",
    "td3/pendulum",
]


def write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "config.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def yaml_of(tmp_path: Path, line: str) -> Path:
    return write(tmp_path, "algo: her\nenv_id: rl_training/PointGoal1D-v0\ntotal_timesteps: 3000\n" + line + "\n")


def error_of(source: str | Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_config(source, overrides)
    return str(caught.value)


class TestYaml:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("1e-3", 1e-3),
            ("1E-3", 1e-3),
            ("1.5e-4", 1.5e-4),
            ("-2e3", -2000.0),
            ("+1e+16", 1e16),
            ("1.e2", 100.0),
            ("0.25", 0.25),
            ("7", 7),
            ("[256, 256]", [256, 256]),
            ("{kind: linear, end: 1e-2}", {"kind": "linear", "end": 0.01}),
            ("null", None),
            ("true", True),
            ("e5", "e5"),
            ("1e", "1e"),
            ("'1e-3'", "1e-3"),
        ],
    )
    def test_values_are_what_they_look_like(self, tmp_path: Path, text: str, value: Any) -> None:
        read = read_yaml(write(tmp_path, f"key: {text}\n"))["key"]
        assert read == value
        assert type(read) is type(value)

    def test_a_block_list_is_a_list(self, tmp_path: Path) -> None:
        assert read_yaml(write(tmp_path, "sizes:\n  - 64\n  - 32\n")) == {"sizes": [64, 32]}

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("seed: 1\nseed: 2\n", "key 'seed' is given twice"),
            ("algo_kwargs:\n  tau: 0.1\n  tau: 0.2\n", "key 'tau' is given twice"),
            ("a: [1, 2\n", "not valid YAML"),
            ("a: b: c\n", "not valid YAML"),
            ("\ta: 1\n", "not valid YAML"),
            ("date: 2020-99-99\n", "not valid YAML"),
            ("? [a, b]\n: 1\n", "not valid YAML"),
            ("a: " + "[" * 5000, "not valid YAML"),
            ("x: !!python/object/apply:os.getcwd []\n", "not valid YAML"),
            ("- 1\n- 2\n", "expected a mapping of keys to values, found list"),
            ("just words\n", "expected a mapping of keys to values, found str"),
            ("", "expected a mapping of keys to values, found NoneType"),
            (b"\xff\xfe\x00", "cannot be read"),
        ],
    )
    def test_what_is_no_mapping_is_refused_with_the_file_and_the_reason(
        self, tmp_path: Path, text: str | bytes, message: str
    ) -> None:
        path = write(tmp_path, text)
        with pytest.raises(ConfigError) as caught:
            read_yaml(path)
        assert message in str(caught.value)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_the_same_key_at_two_levels_is_no_duplicate(self, tmp_path: Path) -> None:
        assert read_yaml(write(tmp_path, "seed: 1\nenv_kwargs:\n  seed: 2\n")) == {"seed": 1, "env_kwargs": {"seed": 2}}

    def test_a_key_that_is_no_text_is_refused(self, tmp_path: Path) -> None:
        assert "Keys should be strings" in error_of(yaml_of(tmp_path, "1: 2"))


class TestSource:
    def test_a_preset_and_a_file_are_found(self, tmp_path: Path) -> None:
        assert config_path("her/point_goal").name == "point_goal.yaml"
        path = yaml_of(tmp_path, "seed: 3")
        assert load_config(path).seed == load_config(str(path)).seed == 3

    def test_an_unknown_preset_gets_the_nearest_one(self) -> None:
        message = error_of("her/point_reech")
        assert "'her/point_reech'" in message
        assert "did you mean 'her/point_reach'?" in message
        assert "rl-training presets" in message

    def test_a_preset_without_its_folder_gets_the_whole_name(self) -> None:
        assert "did you mean 'her/point_reach'?" in error_of("point_reach")

    @pytest.mark.parametrize("name", ["missing.yaml", "missing.yml", "folder/missing.yaml"])
    def test_a_missing_file_is_named(self, tmp_path: Path, name: str) -> None:
        assert error_of(tmp_path / name) == f"no configuration file {str(tmp_path / name)!r}"

    def test_a_folder_is_no_configuration(self, tmp_path: Path) -> None:
        assert str(tmp_path) in error_of(tmp_path)


class TestOverrides:
    def test_they_reach_every_level_and_leave_the_rest(self) -> None:
        plain = load_config("her/point_reach")
        config = load_config(
            "her/point_reach",
            [
                "seed=7",
                "algo_kwargs.batch_size=64",
                "algo_kwargs.early_stopping.patience=3",
                "env_kwargs.wrappers.reward.scale=1e-1",
                "algo_kwargs.hidden_sizes=[32, 32]",
            ],
        )
        assert config.seed == 7
        assert config.algo_kwargs == {
            **plain.algo_kwargs,
            "batch_size": 64,
            "early_stopping": {"patience": 3},
            "hidden_sizes": [32, 32],
        }
        assert config.env_kwargs == {"wrappers": {"reward": {"scale": 0.1}}}
        assert config.env_id == plain.env_id

    def test_the_last_one_wins(self) -> None:
        assert load_config("her/point_goal", ["seed=1", "seed=2"]).seed == 2

    def test_a_value_may_hold_an_equals_sign(self) -> None:
        assert load_config("her/point_goal", ["env_kwargs.name=a=b"]).env_kwargs["name"] == "a=b"

    def test_a_preset_is_not_changed_by_them(self) -> None:
        load_config("her/point_goal", ["algo_kwargs.gamma=0.5"])
        assert load_config("her/point_goal").algo_kwargs["gamma"] == 0.95

    @pytest.mark.parametrize("override", ["seed", "", "=5", ".seed=5", "algo_kwargs.=5", "a..b=5"])
    def test_a_wrong_form_is_shown_with_an_example(self, override: str) -> None:
        assert error_of("her/point_goal", override) == (
            f"--set {override!r}: expected key.path=value, e.g. algo_kwargs.batch_size=128"
        )

    @pytest.mark.parametrize("value", ["[1, 2", "{a", "!!python/name:os.system", "a: b: c"])
    def test_a_value_that_is_not_yaml_is_shown(self, value: str) -> None:
        message = error_of("her/point_goal", f"algo_kwargs.batch_size={value}")
        assert message == f"--set algo_kwargs.batch_size: {value!r} is not a YAML value"

    def test_nothing_can_be_set_below_a_number(self) -> None:
        message = error_of("her/point_goal", "algo_kwargs.gamma.x=5")
        assert "--set algo_kwargs.gamma.x" in message
        assert "0.95" in message

    def test_a_section_that_was_left_empty_can_be_filled(self, tmp_path: Path) -> None:
        path = yaml_of(tmp_path, "algo_kwargs:")
        assert load_config(path, ["algo_kwargs.gamma=0.9"]).algo_kwargs == {"gamma": 0.9}


class TestPresets:
    def test_the_promised_ones_are_there(self) -> None:
        assert set(PRESETS) <= set(preset_names())

    @pytest.mark.parametrize("name", preset_names())
    def test_each_is_valid_and_survives_a_round_trip(self, tmp_path: Path, name: str) -> None:
        config = read_config(name)
        assert config.algo == name.partition("/")[0]
        again = read_config(write(tmp_path, config.to_yaml()))
        assert again == config
        assert parse_run(again) == parse_run(config)

    @pytest.mark.parametrize("name", preset_names())
    def test_the_settings_of_each_survive_a_round_trip_with_every_default_written_out(
        self, tmp_path: Path, name: str
    ) -> None:
        config = read_config(name)
        again = read_config(write(tmp_path, complete_config(config).to_yaml()))
        assert parse_run(again) == parse_run(config)


class TestRoundTrip:
    @settings(deadline=None, max_examples=60)
    @given(
        number=st.floats(allow_nan=False, allow_infinity=False),
        text=st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=8),
        seed=st.integers(0, 2**32 - 1),
    )
    def test_any_value_comes_back(self, tmp_path_factory: Any, number: float, text: str, seed: int) -> None:
        config = parse_config({**BASE, "seed": seed, "env_kwargs": {"number": number, "text": text}})
        assert load_config(write(tmp_path_factory.mktemp("c"), config.to_yaml())) == config

    @pytest.mark.parametrize("folder", ["1e5", "12", "true", "null", "a: b", "2020-01-01", "ordner/ä"])
    def test_a_folder_of_any_name_comes_back(self, tmp_path: Path, folder: str) -> None:
        config = parse_config({**BASE, "output_dir": folder})
        assert load_config(write(tmp_path, config.to_yaml())).output_dir == Path(folder)

    def test_defaults_are_written_out(self) -> None:
        assert read_yaml_text(parse_config(BASE).to_yaml()) >= set(TrainConfig.model_fields)


def read_yaml_text(text: str) -> set[str]:
    return {line.partition(":")[0] for line in text.splitlines()}


class TestUnknownKeys:
    @pytest.mark.parametrize(
        ("override", "key", "nearest"),
        [
            ("total_timestep=5", "total_timestep", "total_timesteps"),
            ("eval-episodes=5", "eval-episodes", "eval_episodes"),
            ("evn_id=x", "evn_id", "env_id"),
            ("algo_kwarg.tau=0.1", "algo_kwarg", "algo_kwargs"),
            ("algo_kwargs.batchsize=4", "algo_kwargs.batchsize", "batch_size"),
            ("algo_kwargs.her_ration=0.5", "algo_kwargs.her_ration", "her_ratio"),
            ("algo_kwargs.early_stopping.patiance=4", "algo_kwargs.early_stopping.patiance", "patience"),
            ("algo_kwargs.lr_schedule.knd=linear", "algo_kwargs.lr_schedule.knd", "kind"),
            ("algo_kwargs.random_action_prob.strat=1.0", "algo_kwargs.random_action_prob.strat", "start"),
            ("env_kwargs.wrappers.rewards.scale=2", "env_kwargs.wrappers.rewards", "reward"),
            ("env_kwargs.wrappers.reward.scal=2", "env_kwargs.wrappers.reward.scal", "scale"),
        ],
    )
    def test_each_level_names_the_key_and_the_nearest_one(self, override: str, key: str, nearest: str) -> None:
        removed = ["algo_kwargs.random_action_prob={}"] if "random_action_prob." in override else []
        message = error_of("her/point_goal", *removed, override)
        assert f"unknown key {key!r}" in message
        assert f"did you mean {nearest!r}?" in message

    def test_only_the_union_member_that_was_meant_is_spoken_of(self) -> None:
        message = error_of("her/point_goal", "algo_kwargs.random_action_prob={strat: 1.0}")
        assert "function-after" not in message
        assert "unknown key 'algo_kwargs.random_action_prob.strat'" in message

    def test_a_setting_in_the_wrong_place_is_told_where_it_belongs(self) -> None:
        message = error_of("her/point_goal", "learning_rate=1e-3")
        assert "unknown key 'learning_rate'" in message
        assert "algo_kwargs" in message

    def test_hindsight_settings_are_unknown_to_other_algorithms(self) -> None:
        assert "unknown key 'algo_kwargs.goal_selection_strategy'" in error_of(
            "ddpg/pendulum", "algo_kwargs.goal_selection_strategy=future"
        )

    def test_online_settings_are_unknown_offline_unless_they_say_nothing(self) -> None:
        values = {"algo": "bc", "total_timesteps": 10, "algo_kwargs": {"dataset_path": "x", "train_frequency": 1}}
        parse_run(parse_config(values))
        values["algo_kwargs"]["train_frequency"] = 7
        with pytest.raises(ConfigError, match=r"unknown key 'algo_kwargs\.train_frequency' offline: it needs online"):
            parse_run(parse_config(values))

    def test_every_wrong_key_gets_a_line(self) -> None:
        message = error_of("her/point_goal", "algo_kwargs.batchsize=4", "algo_kwargs.gama=0.9")
        assert len(message.splitlines()) == 2
        assert "'batch_size'" in message
        assert "'gamma'" in message

    def test_an_unknown_algorithm_gets_the_nearest(self) -> None:
        message = error_of("her/point_goal", "algo=hre")
        assert "algo = 'hre'" in message
        assert "did you mean 'her'?" in message

    def test_an_unknown_backend_gets_the_choices(self) -> None:
        message = error_of("her/point_goal", "algo_kwargs.backend=tdd3")
        assert "algo_kwargs.backend = 'tdd3'" in message
        assert all(name in message for name in ("ddpg", "td3", "sac", "dqn"))


class TestDefaults:
    """What an algorithm does differently by default."""

    @staticmethod
    def run_of(algo: str, **algo_kwargs: Any) -> Any:
        values = {**BASE, "algo": algo, "env_id": "Pendulum-v1", "algo_kwargs": {"learning_starts": 5, **algo_kwargs}}
        return parse_run(parse_config(values))

    def test_defaults_are_those_of_the_learner_and_of_the_algorithm(self) -> None:
        assert self.run_of("td3").exploration.exploration_noise == 0.1
        assert self.run_of("sac").exploration.exploration_noise is None
        assert self.run_of("sac").collection.gradient_updates_per_step == 1.0
        assert self.run_of("redq").collection.gradient_updates_per_step == 20.0
        assert self.run_of("rlpd").prior.offline_batch_ratio == 0.5
        assert self.run_of("sac").prior.offline_batch_ratio is None

    def test_defaults_give_way_to_what_is_set_and_not_to_null(self) -> None:
        run = self.run_of("rlpd", offline_batch_ratio=0.2, gradient_updates_per_step=3)
        assert (run.prior.offline_batch_ratio, run.collection.gradient_updates_per_step) == (0.2, 3.0)
        assert self.run_of("rlpd", offline_batch_ratio=None).prior.offline_batch_ratio == 0.5


class TestWrongValues:
    @pytest.mark.parametrize("missing", ["algo", "env_id", "total_timesteps"])
    def test_what_is_required_is_named(self, missing: str) -> None:
        values = {key: value for key, value in BASE.items() if key != missing}
        with pytest.raises(ConfigError, match=f"key '{missing}' is required and missing"):
            parse_run(parse_config(values))  # env_id is required of runs that collect

    @pytest.mark.parametrize(
        ("override", "start"),
        [
            ("seed=abc", "seed = 'abc'"),
            ("seed=1.5", "seed = 1.5"),
            ("seed=-1", "seed = -1"),
            ("seed=4294967296", "seed = 4294967296"),
            ("env_id=5", "env_id = 5"),
            ("total_timesteps=0", "total_timesteps = 0"),
            ("total_timesteps=-5", "total_timesteps = -5"),
            ("total_timesteps=[1]", "total_timesteps = [1]"),
            ("num_envs=0", "num_envs = 0"),
            ("eval_episodes=0", "eval_episodes = 0"),
            ("num_threads=0", "num_threads = 0"),
            ("output_dir=[a]", "output_dir = ['a']"),
            ("algo_kwargs=5", "algo_kwargs = 5"),
            ("env_kwargs=[1]", "env_kwargs = [1]"),
            ("algo_kwargs.batch_size=abc", "algo_kwargs.batch_size = 'abc'"),
            ("algo_kwargs.batch_size=0", "algo_kwargs.batch_size = 0"),
            ("algo_kwargs.her_ratio=1.5", "algo_kwargs.her_ratio = 1.5"),
            ("algo_kwargs.her_ratio=-0.1", "algo_kwargs.her_ratio = -0.1"),
            ("algo_kwargs.her_ratio=.nan", "algo_kwargs.her_ratio = nan"),
            ("algo_kwargs.n_sampled_goal=-1", "algo_kwargs.n_sampled_goal = -1"),
            ("algo_kwargs.gamma=1", "algo_kwargs.gamma = 1"),
            ("algo_kwargs.tau=0", "algo_kwargs.tau = 0"),
            ("algo_kwargs.learning_rate=fast", "algo_kwargs.learning_rate = 'fast'"),
            ("algo_kwargs.hidden_sizes=256", "algo_kwargs.hidden_sizes = 256"),
            ("algo_kwargs.hidden_sizes=[]", "algo_kwargs.hidden_sizes = []"),
            ("algo_kwargs.hidden_sizes=[64, -1]", "algo_kwargs.hidden_sizes = [64, -1]"),
            ("algo_kwargs.hidden_sizes=[64, x]", "algo_kwargs.hidden_sizes.1 = 'x'"),
            ("algo_kwargs.exploration_noise=-1", "algo_kwargs.exploration_noise = -1"),
            ("algo_kwargs.random_action_prob=1.5", "algo_kwargs.random_action_prob = 1.5"),
            ("algo_kwargs.random_action_prob=-0.5", "algo_kwargs.random_action_prob = -0.5"),
            ("algo_kwargs.eval_interval=0", "algo_kwargs.eval_interval = 0"),
            ("algo_kwargs.motion_priority=1", "algo_kwargs.motion_priority = 1"),
            ("algo_kwargs.goal_selection_strategy=random", "algo_kwargs.goal_selection_strategy = 'random'"),
            ("algo_kwargs.lr_schedule=cosin", "algo_kwargs.lr_schedule.kind = 'cosin'"),
            ("algo_kwargs.early_stopping=5", "algo_kwargs.early_stopping = 5"),
            ("algo_kwargs.early_stopping={}", "algo_kwargs.early_stopping = {}"),
            ("env_kwargs.vectorization=asink", "env_kwargs.vectorization = 'asink'"),
            ("env_kwargs.wrappers=5", "env_kwargs.wrappers = 5"),
            ("env_kwargs.wrappers.reward.scale=a", "env_kwargs.wrappers.reward.scale = 'a'"),
        ],
    )
    def test_the_key_the_value_and_what_was_expected_are_named(self, override: str, start: str) -> None:
        message = error_of("her/point_goal", override)
        assert start in message
        assert len(message.splitlines()) == 1
        assert len(message.partition(start)[2]) > len(": ")

    @pytest.mark.parametrize(
        "override", ["total_timesteps=true", "num_envs=true", "algo_kwargs.her_ratio=true", "algo_kwargs.gamma=false"]
    )
    def test_yes_and_no_are_not_numbers(self, override: str) -> None:
        key, _, value = override.partition("=")
        assert f"{key} = {value.capitalize()}" in error_of("her/point_goal", override)

    @pytest.mark.parametrize(
        ("overrides", "names"),
        [
            (
                ["algo_kwargs.batch_size=256", "algo_kwargs.buffer_capacity=100"],
                ["algo_kwargs.batch_size = 256", "algo_kwargs.buffer_capacity = 100"],
            ),
            (["algo_kwargs.learning_starts=5000"], ["algo_kwargs.learning_starts = 5000", "total_timesteps = 3000"]),
            (["algo_kwargs.her_ratio=0.5", "algo_kwargs.n_sampled_goal=4"], ["her_ratio = 0.5", "n_sampled_goal = 4"]),
            (["env_kwargs.wrappers.reward.clip=[1, 0]"], ["clip_min = 1.0", "clip_max = 0.0"]),
            (["env_kwargs.wrappers.reward.clip=3"], ["clip = 3", "[low, high]"]),
            (
                ["algo_kwargs.lr_schedule={kind: linear, warmup: 0.5, fraction: 0.2}"],
                ["warmup = 0.5", "fraction = 0.2"],
            ),
        ],
    )
    def test_values_that_contradict_each_other_are_both_named(self, overrides: list[str], names: list[str]) -> None:
        message = error_of("her/point_goal", *overrides)
        assert all(name in message for name in names)

    def test_a_thread_count_no_machine_has_is_refused(self) -> None:
        # torch itself dies of it, without a word.
        assert "num_threads = 1000000" in error_of("her/point_goal", "num_threads=1000000")

    def test_a_schedule_of_a_probability_stays_within_one(self) -> None:
        message = error_of("her/point_goal", "algo_kwargs.random_action_prob={kind: linear, start: 3.0, end: 0.1}")
        assert "algo_kwargs.random_action_prob" in message

    def test_whole_floats_are_integers_and_numbers_are_floats(self) -> None:
        config = parse_config({**BASE, "total_timesteps": 1e6})
        assert config.total_timesteps == 1_000_000
        assert isinstance(config.total_timesteps, int)

    def test_a_config_cannot_be_changed(self) -> None:
        config = parse_config(BASE)
        with pytest.raises(ValueError, match="frozen"):
            config.seed = 1  # type: ignore[misc]


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"])
@pytest.mark.parametrize("value", [str, Path, lambda text: [{"name": text}]])
def test_texts_that_no_file_system_takes_are_refused_with_their_key(text, value):
    values = {"algo": "sac", "total_timesteps": 10, "env_kwargs": {"part": value(text)}}
    with pytest.raises(ConfigError, match=r"env_kwargs\.part[.\w]* = .*: expected a text without NUL and surrogate"):
        parse_config(values)
