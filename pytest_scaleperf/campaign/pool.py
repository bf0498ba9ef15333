"""Several launches under way at once: start what has room, notice what ended, and let each piece of work go on.

A piece of work is a generator: it yields an Order, is sent the Sample once that launch has ended, and returns its
result. So the work of a case reads as if it were alone, and one thread drives them all.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from pytest_scaleperf.campaign.launching import Launching, Order, Sample, Started
from pytest_scaleperf.campaign.timeline import Timeline
from pytest_scaleperf.campaign.watch import TICK_SECONDS, Watch
from pytest_scaleperf.launch.protocol import Launcher
from pytest_scaleperf.model import JobResult, LaunchError, Placement, Progress, ScalePerfError, StopReason, Wanted

Work = Generator[Order, Sample, Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a piece of work ended: its result, or what it raised."""

    result: Any = None
    error: BaseException | None = None


@dataclass(slots=True)
class _Task:
    """One piece of work: not yet begun (no ``order``), waiting for room, or running (``started``)."""

    key: str
    work: Work
    wanted: Wanted
    order: Order | None = None
    started: Started | None = None
    watch: Watch | None = None


@dataclass(slots=True)
class Pool:
    """All work of one session. ``on_end`` is told of each piece that ends before somebody waits for it."""

    launcher: Launcher
    launching: Launching
    timeline: Timeline
    on_end: Callable[[Ended], Ended]
    launched: int = 0
    _tasks: dict[str, _Task] = field(default_factory=dict)
    _ended: dict[str, Ended] = field(default_factory=dict)
    _awaited: str | None = None

    def __contains__(self, key: str) -> bool:
        """Whether work of that key is under way, or has ended and was not yet asked for."""
        return key in self._tasks or key in self._ended

    def add(self, key: str, work: Work, like: Order) -> None:
        """Take up a piece of work. It begins when there is room for an order ``like`` the one that it yields first."""
        self._tasks[key] = _Task(key, work, like.wanted(key, self.launching.system))

    def result(self, key: str, progress: Callable[[Progress], None]) -> Any:  # noqa: ANN401 - as various as the work
        """Drive all work until that of ``key`` has ended, and return what it returned, or raise what it raised."""
        self._awaited = key
        try:
            self.drive(lambda: key in self._ended, progress)
        finally:
            self._awaited = None
        ended = self._ended.pop(key)
        if ended.error is not None:
            raise ended.error
        return ended.result

    def peek(self, key: str) -> Ended | None:
        """How the work of ``key`` ended, where it has; ``result`` still gives it to whoever waits for it."""
        return self._ended.get(key)

    def forget(self, key: str) -> None:
        """Drop how the work of ``key`` ended: nobody will ask for it."""
        self._ended.pop(key, None)

    def drive(self, until: Callable[[], bool], progress: Callable[[Progress], None]) -> None:
        """Drive all work until ``until`` says so, or nothing is left to drive."""
        try:
            while not until() and self._tasks:
                self._step(progress)
        except BaseException as error:
            self._abandon(error)
            raise

    def _step(self, progress: Callable[[Progress], None]) -> None:
        self._fill()
        running = [task for task in self._tasks.values() if task.started is not None]
        if not running:
            if self._awaited not in self._ended:
                self.launcher.wait(TICK_SECONDS)  # nothing has room: the launcher may know more later
            return
        if len(running) == 1 and running[0].started is not None:
            self._settle(running[0], running[0].started.job.wait(TICK_SECONDS))
        else:
            self.launcher.wait(TICK_SECONDS)
            for task in running:
                if task.started is not None:
                    self._settle(task, task.started.job.wait(0.0))
        self._tell(progress)

    def _tell(self, progress: Callable[[Progress], None]) -> None:
        """Where the awaited job is, or the first of those that run."""
        watches = [task.watch for task in self._tasks.values() if task.watch is not None]
        awaited = self._tasks.get(self._awaited or "")
        shown = awaited.watch if awaited is not None and awaited.watch is not None else next(iter(watches), None)
        if shown is not None:
            progress(shown.progress(len(watches) - 1))

    def _fill(self) -> None:
        """Start whatever waits and has room. The awaited one is the first to be asked for."""
        while True:
            waiting = [task for task in self._tasks.values() if task.started is None]
            if not waiting:
                return
            waiting.sort(key=lambda task: task.key != self._awaited)
            try:
                chosen = self.launcher.choose([task.wanted for task in waiting])
            except LaunchError as error:
                self._refuse(waiting, error)
                continue
            if chosen is None:
                return
            task = self._tasks[chosen[0].key]
            if task.order is None and not self._go_on(task):
                continue  # it needs no launch: a resumed case
            self._begin(task, chosen[1])

    def _begin(self, task: _Task, placement: Placement) -> None:
        if task.order is None:
            return
        try:
            task.started = self.launching.start(task.order, placement, self.launcher.submit)
        except OSError as error:
            told = f"{task.key}: not started: {error.filename or 'its folder'}: {error.strerror}; make it writable"
            self._go_on(task, error=LaunchError(f"{told}, and go on with --resume latest"))
            return
        except Exception as error:  # noqa: BLE001 - whatever kept it from starting is for its own work to record
            self._go_on(task, error=error)
            return
        self.launched += 1
        task.watch = Watch(task.order.case, task.started.spec.output)

    def _refuse(self, waiting: list[_Task], error: LaunchError) -> None:
        """One of those that wait can never run: find out which, and tell it."""
        for task in waiting:
            try:
                self.launcher.choose([task.wanted])
            except LaunchError as own:
                if task.order is not None or self._go_on(task):
                    self._go_on(task, error=own)
                return
        raise error

    def _settle(self, task: _Task, result: JobResult | None) -> None:
        """See how a running job is; if it has ended, read it and let its work go on."""
        started, watch = task.started, task.watch
        if started is None or watch is None:
            return
        if result is None:
            reason = watch.look(runs=started.job.runs)
            if reason is None:
                return
            result = started.job.stop(reason)
        task.started = task.watch = None
        self.timeline.add(started, result)
        if result.stopped is StopReason.NEVER_STARTED:
            told = f"{task.key}: expected it to start, but it never did: {result.detail}"
            self._go_on(task, error=LaunchError(f"{told}. Correct `slurm:` in the system file, or the command line"))
            return
        try:
            sample = self.launching.observed(started, result)
        except Exception as error:  # noqa: BLE001 - a log that we cannot read ends its own case, not the others
            self._go_on(task, error=error)
            return
        self._go_on(task, sample)

    def _go_on(self, task: _Task, sample: Sample | None = None, *, error: Exception | None = None) -> bool:
        """Let a piece of work go on to its next order; False where it ended instead."""
        try:
            if error is not None:
                task.order = task.work.throw(error)
            else:
                task.order = next(task.work) if sample is None else task.work.send(sample)
        except StopIteration as stop:
            ended = Ended(result=stop.value)
        except Exception as raised:  # noqa: BLE001 - raised again where its case is waited for
            ended = Ended(error=raised)
        else:
            task.wanted = task.order.wanted(task.key, self.launching.system)
            return True
        del self._tasks[task.key]
        self._ended[task.key] = ended if task.key == self._awaited else self.on_end(ended)
        return False

    def _abandon(self, error: BaseException) -> None:
        """The session is ending (Ctrl-C, SIGTERM, a fault of ours): no job may outlive it, each case is recorded."""
        running = [task for task in self._tasks.values() if task.started is not None]
        if len(running) > 1:
            self.launcher.close()  # all at once: one after the other could take a grace period each
        tasks, self._tasks = list(self._tasks.values()), {}
        try:
            for task in tasks:
                if task.started is not None:
                    result = task.started.job.stop(StopReason.INTERRUPTED)
                    self.timeline.add(task.started, result)
        finally:  # also where a second signal came meanwhile: each case says why it was cut short
            for task in tasks:
                if task.order is not None:
                    _end(task.work, error)


def _end(work: Work, error: BaseException) -> None:
    """Let the work write down that it was cut short; what it raises then is the error that is already known."""
    try:
        work.throw(error)
    except ScalePerfError:
        return  # it could not be written (a full disk): what ends the session goes before that
    except BaseException as raised:
        if raised is not error:
            raise
