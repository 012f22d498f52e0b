"""A trial of Ray Tune: an ordinary run in its own folder, which waits at each evaluation for Tune's decision."""

from __future__ import annotations

import pickle
import queue
import threading
from typing import TYPE_CHECKING, Any

from ray import tune

from rl_training.scale.worker import enter

if TYPE_CHECKING:
    from rl_training.scale.trials import Trial
    from rl_training.scale.tune_file import Search

STOPPED = "early stopping: ASHA ended this trial"
"""Why a run ended that Tune stopped. Its status is ``stopped``, and ``resume`` continues it."""


class RunTrainable(tune.Trainable):
    """Trains one run in a thread, and hands each of its evaluations to Tune.

    Evaluations that the folder has already, because the search was killed, are handed over first.
    """

    def setup(  # type: ignore[override]  # tune.with_parameters gives the others
        self, config: dict[str, Any], packed: bytes, threads: int, working_folder: str
    ) -> None:
        """Find the run's folder, and read its earlier evaluations; ``packed`` is the pickled ``Search``."""
        enter({"num_threads": threads}, working_folder)  # before anything heavy is imported
        from rl_training.scale.study import changes_of, evaluations

        search: Search = pickle.loads(packed)
        self._metric = search.settings.metric
        self._trial = search.trial(changes_of(config, search.ranges))
        self._earlier = evaluations(self._trial, self._metric)
        self._last: dict[str, float] = {}
        self._run: _RunThread | None = None

    def step(self) -> dict[str, Any]:
        """Return the next evaluation; the last one says that the run is done."""
        from rl_training.errors import ConfigError
        from rl_training.runtime.logging import STEP

        if self._earlier:
            self._last = self._earlier.pop(0)
            return {**self._last, "done": False}
        if self._run is None:
            self._run = _RunThread(self._trial, int(self._last.get(STEP, 0)))
        found = self._run.next_evaluation()
        if found is not None:
            self._last = found
        if self._metric not in self._last:
            self._run.stop()
            raise ConfigError(f"metric = {self._metric}: the evaluations of this run do not have it")
        return {**self._last, "done": self._run.has_ended}

    def cleanup(self) -> None:
        """End the run if Tune stopped it, with a checkpoint and its result."""
        if self._run is not None:
            self._run.stop()


class _RunThread:
    """The run, which waits after each evaluation until the next one is asked for."""

    def __init__(self, trial: Trial, reported: int) -> None:
        self.has_ended = False
        self._results: queue.Queue[dict[str, float] | None] = queue.Queue()
        self._turns = threading.Semaphore(0)
        self._stopping = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._train, args=(trial, reported), daemon=True)
        self._thread.start()

    def next_evaluation(self) -> dict[str, float] | None:
        """Let the run go on to its next evaluation, and return it; None if there is no other one."""
        self._turns.release()
        found = self._results.get()
        if found is None or found.pop("ending"):
            self._thread.join()
            self.has_ended = True
            if self._error is not None:
                raise self._error
        return found

    def stop(self) -> None:
        """End the run at the evaluation where it waits."""
        self._stopping = True
        self._turns.release()
        self._thread.join()

    def _train(self, trial: Trial, reported: int) -> None:
        from rl_training.experiment.run_folder import train_in_folder
        from rl_training.runtime.callbacks import Callback
        from rl_training.runtime.logging import STEP

        results, turns = self._results, self._turns

        class HandOver(Callback):
            """Hands evaluations over, one for each turn."""

            def on_evaluation(own, run: Any, metrics: dict[str, float]) -> None:  # noqa: N805 (self is the thread)
                if run.state.global_step <= reported:
                    return  # a resumed run repeats what the log had already
                ending = run.state.should_stop
                results.put({**metrics, STEP: run.state.global_step, "ending": ending})
                if not ending:
                    turns.acquire()
                    if self._stopping:
                        run.state.stop(STOPPED)

        turns.acquire()
        try:
            train_in_folder(trial.config, trial.location, name=trial.name, callbacks=[HandOver()])
        except BaseException as error:
            self._error = error
        results.put(None)
