"""The search itself: Optuna's sampler with its journal, and ASHA with what earlier trials have shown."""

from __future__ import annotations

import json
import warnings
from types import SimpleNamespace
from typing import Any

from rl_training.errors import ConfigError, MissingExtraError
from rl_training.json_output import to_json
from rl_training.runtime.logging import STEP, read_metrics
from rl_training.scale.ranges import Range
from rl_training.scale.trials import Trial, refresh
from rl_training.scale.tune_file import Search

STUDY = "tune"
_AGAIN = "again"
"""The attribute of a trial that takes up a killed one; its value is the number of that one."""


def import_optuna() -> Any:
    """Return the module ``optuna``, which prints nothing by itself."""
    try:
        import optuna
    except ImportError:
        raise MissingExtraError("tune", "scale") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def open_storage(search: Search) -> Any:
    """Open the journal. A lock that a killed search left is removed: this search holds the lock of the folder."""
    import_optuna()
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    for lock in search.folder.glob(f"{search.journal.name}.*lock*"):
        lock.unlink(missing_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return JournalStorage(JournalFileBackend(str(search.journal)))


def open_study(search: Search, storage: Any) -> Any:
    """Return the study in a journal, or begin it. One with other ranges is refused."""
    optuna = import_optuna()
    study = optuna.create_study(storage=storage, study_name=STUDY, direction="maximize", load_if_exists=True)
    told = {"space": search.settings.space, "metric": search.settings.metric, "seed": search.settings.seed}
    before = study.user_attrs.get("search")
    if before is None:
        study.set_user_attr("search", told)
    elif before != json.loads(to_json(told)):
        key = next(key for key in told if before.get(key) != json.loads(to_json(told[key])))
        raise ConfigError(
            f"{search.path}: {key} = {told[key]!r}: the search in {search.folder} has {before.get(key)!r};"
            " expected another folder"
        )
    return study


def requeue_killed(study: Any) -> None:
    """Put trials that a killed search was running back into the queue. Their runs continue in their folders."""
    optuna = import_optuna()
    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        if trial.params:
            study.enqueue_trial(trial.params, user_attrs={_AGAIN: trial.number})
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)


def trials_left(study: Any, wanted: int) -> int:
    """Return how many trials are to be run, those in the queue included."""
    trials = study.get_trials(deepcopy=False)
    killed = {trial.user_attrs.get(_AGAIN) for trial in trials}
    ended = [trial for trial in trials if trial.state.is_finished() and trial.number not in killed]
    return max(0, wanted - len(ended))


def tried(study: Any, ranges: list[Range]) -> list[dict[str, Any]]:
    """Return the settings of all trials that have ended, in their order, each once."""
    found = {_key(trial.params): trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()}
    return [changes_of(trial.params, ranges) for trial in found.values() if trial.params]


def distributions(ranges: list[Range]) -> dict[str, Any]:
    """Return the ranges as Optuna knows them; the options of a choice are JSON texts."""
    optuna = import_optuna()
    kinds = optuna.distributions
    found: dict[str, Any] = {}
    for one in ranges:
        if one.kind == "choice":
            found[one.key] = kinds.CategoricalDistribution([to_json(value) for value in one.values])
        elif one.kind == "int":
            found[one.key] = kinds.IntDistribution(*one.values)
        else:
            found[one.key] = kinds.FloatDistribution(*one.values, log=one.kind == "loguniform")
    return found


def changes_of(parameters: dict[str, Any], ranges: list[Range]) -> dict[str, Any]:
    """Return Optuna's parameters as changes of the configuration."""
    changes = dict[str, Any]()
    for one in ranges:
        value = parameters[one.key]
        if one.kind == "choice":
            value = json.loads(value)
        elif one.kind != "int":
            value = one.rounded(value)
        changes[one.key] = value
    return changes


def make_searcher(search: Search, storage: Any, tried_before: int) -> Any:
    """Return Tune's searcher over the study: TPE, which takes running trials into account.

    ``tried_before`` keeps a search that is taken up from drawing the same random numbers again.
    """
    from ray.tune.search.optuna import OptunaSearch

    optuna = import_optuna()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler = optuna.samplers.TPESampler(
            seed=search.settings.seed + tried_before,
            n_startup_trials=max(5, search.settings.trials // 4),
            constant_liar=True,
        )
        return OptunaSearch(
            space=distributions(search.ranges),
            metric=search.settings.metric,
            mode="max",
            sampler=sampler,
            study_name=STUDY,
            storage=storage,
        )


def make_scheduler(search: Search, earlier: list[Trial]) -> Any:
    """Return ASHA, told what the evaluations of earlier trials were; None if the file switches it off.

    Tune's own state is not needed for that: the runs' folders have every evaluation.
    """
    if search.settings.asha is None:
        return None
    from ray.tune.schedulers import AsyncHyperBandScheduler

    scheduler = AsyncHyperBandScheduler(
        time_attr=STEP,
        metric=search.settings.metric,
        mode="max",
        max_t=search.config.total_timesteps,
        grace_period=search.grace,
        reduction_factor=search.settings.asha.reduction,
    )
    for trial in earlier:
        stand_in: Any = SimpleNamespace(trial_id=f"earlier {trial.name}")
        nobody: Any = None  # ASHA does not look at the controller
        scheduler.on_trial_add(nobody, stand_in)
        for row in evaluations(trial, search.settings.metric):
            scheduler.on_trial_result(nobody, stand_in, row)
    return scheduler


def evaluations(trial: Trial, metric: str) -> list[dict[str, float]]:
    """Return the rows of a run's log that have a metric."""
    refresh(trial)
    return [row for row in read_metrics(trial.run_dir / "metrics.csv") if metric in row]


def importances(study: Any) -> dict[str, float]:
    """Return how much each setting mattered, the shares adding up to one; empty if too few trials tell."""
    optuna = import_optuna()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        try:
            return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))
        except (RuntimeError, ValueError):  # fewer than two trials, or all of them equal
            return {}


def _key(parameters: dict[str, Any]) -> str:
    return to_json(dict(sorted(parameters.items())))
