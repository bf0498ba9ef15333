"""Which phase a launch belongs to: annotations, autograd's calls, the last backward, loss chunks, CUDA graphs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_scaleperf.trace.rank import analyse_rank
from pytest_scaleperf.trace.result import RankReport, StepReport
from pytest_scaleperf.trace.rules import Phase, Rules
from tests.trace.script import ENGINE, MAIN, US, Script

STEP = 10_000


class Launcher:
    """Launches one kernel of 10 us after the other; the GPU runs each 1 ms later, so no window cuts any."""

    def __init__(self, script: Script) -> None:
        self.script, self.at = script, 1000 * US

    def __call__(self, when: int, tid: int = MAIN) -> None:
        self.script.kernel("gemm", self.at, self.at + 10 * US, when, tid=tid)
        self.at += 10 * US


def compute_us(step: StepReport) -> dict[Phase, float]:
    return {part.phase: part.split.compute / US for part in step.phases}


def report(script: Script, path: Path, rules: Rules | None = None) -> RankReport:
    return analyse_rank(script.write(path / "t.json"), rules or Rules())


def test_accumulation_by_launches(tmp_path: Path) -> None:
    """Two microbatches; the engine's own launches, one after its last call, and the main thread's around them."""
    script = Script()
    launch = Launcher(script)
    script.step(3, 0, STEP)
    launch(10)
    launch(20)
    for begin in (100, 1100):
        script.evaluate(begin, begin + 50)
        script.evaluate(begin + 60, begin + 100)
        launch(begin + 10, ENGINE)
        launch(begin + 55, ENGINE)
        launch(begin + 110, ENGINE)
        launch(begin + 200)
    found = report(script, tmp_path)
    assert found.phases_from == "launches"
    assert compute_us(found.steps[0]) == {
        Phase.FORWARD: 30,
        Phase.BACKWARD: 30,
        Phase.LAST_BACKWARD: 30,
        Phase.OPTIMIZER: 10,
    }
    assert found.steps[0].backwards == 2


def test_one_microbatch_is_the_last(tmp_path: Path) -> None:
    script = Script()
    launch = Launcher(script)
    script.step(3, 0, STEP)
    launch(10)
    script.evaluate(100, 200)
    launch(150, ENGINE)
    launch(300)
    assert compute_us(report(script, tmp_path).steps[0]) == {
        Phase.FORWARD: 10,
        Phase.LAST_BACKWARD: 10,
        Phase.OPTIMIZER: 10,
    }


def test_backward_on_the_main_thread(tmp_path: Path) -> None:
    """Where autograd has no device thread, its calls are on the main one; recomputed kernels are backward."""
    script = Script()
    launch = Launcher(script)
    script.step(3, 0, STEP)
    launch(10)
    for begin in (100, 200, 1000):
        script.evaluate(begin, begin + 90, MAIN)
        launch(begin + 20)
    launch(500)
    launch(1200)
    assert compute_us(report(script, tmp_path).steps[0]) == {
        Phase.FORWARD: 20,
        Phase.BACKWARD: 20,
        Phase.LAST_BACKWARD: 10,
        Phase.OPTIMIZER: 10,
    }


def test_fsdp_hooks_after_the_last_call_are_backward(tmp_path: Path) -> None:
    script = Script(device=None)
    script.step(3, 0, STEP)
    script.operator("aten::mm", 10, 20)
    script.evaluate(100, 200, MAIN)
    script.annotate("FSDP::root_post_backward_callback", 210, 260)
    script.operator("aten::add", 220, 250)
    script.operator("aten::add", 300, 320)
    (step,) = report(script, tmp_path).steps
    assert {part.phase: part.split.compute for part in step.phases} == {
        Phase.FORWARD: 10,
        Phase.LAST_BACKWARD: 30,
        Phase.OPTIMIZER: 20,
    }


@pytest.mark.parametrize("annotated", [False, True])
def test_backwards_of_loss_chunks_are_no_microbatches(annotated: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a parameter
    """torchtitan's chunked loss: one call per chunk, of any length, before the microbatch's own backward."""
    script = Script()
    launch = Launcher(script)
    script.step(3, 0, STEP)
    for begin in (0, 4000):
        launch(begin + 10)
        for chunk in range(3):
            low = begin + 100 + 800 * chunk
            script.evaluate(low, low + 700)
            launch(low + 5, ENGINE)
            launch(low + 750)
            if annotated:
                script.annotate("scaleperf.backward", low, low + 700)
        for call in range(40):
            script.evaluate(begin + 3000 + 10 * call, begin + 3005 + 10 * call)
        launch(begin + 3100, ENGINE)
        if annotated:
            script.annotate("scaleperf.forward", begin, begin + 50)
            script.annotate("scaleperf.backward", begin + 2990, begin + 3500)
    launch(9000)
    found = report(script, tmp_path)
    assert found.phases_from == ("annotations" if annotated else "launches")
    assert found.steps[0].backwards == 2
    assert compute_us(found.steps[0]) == {
        Phase.FORWARD: 20,
        Phase.BACKWARD: 70,
        Phase.LAST_BACKWARD: 70,
        Phase.OPTIMIZER: 10,
    }


def test_annotations_come_before_launches(tmp_path: Path) -> None:
    """Annotated stretches are told by what they say, the rest by where it lies; nested ones belong to the outermost."""
    script = Script()
    launch = Launcher(script)
    script.step(3, 0, STEP)
    script.evaluate(900, 950)
    script.annotate("scaleperf.forward", 100, 200)
    launch(50)
    launch(150)
    launch(250)
    script.annotate("scaleperf.backward", 300, 400)
    script.annotate("scaleperf.forward", 310, 390)
    launch(350, ENGINE)
    launch(450)
    script.annotate("scaleperf.optimizer", 500, 600)
    launch(550)
    launch(650)
    found = report(script, tmp_path)
    assert found.phases_from == "annotations"
    assert compute_us(found.steps[0]) == {Phase.FORWARD: 30, Phase.LAST_BACKWARD: 10, Phase.OPTIMIZER: 30}


def test_a_schedule_of_its_own_names_its_phases(tmp_path: Path) -> None:
    """DualPipe runs a forward between two backwards, and an optimiser before the last of them."""
    script = Script()
    launch = Launcher(script)
    script.step(3, 0, STEP)
    for at, name in enumerate(("mlp(F)", "mlp(B)", "attn(F)", "mlp(W)", "attn(B)")):
        script.annotate(name, 100 * at, 100 * at + 90)
        launch(100 * at + 50)
    rules = Rules(forward=(r"\(F\)$",), backward=(r"\([BW]\)$",))
    assert compute_us(report(script, tmp_path, rules).steps[0]) == {
        Phase.FORWARD: 20,
        Phase.BACKWARD: 20,
        Phase.LAST_BACKWARD: 10,
    }
    assert report(script, tmp_path).phases_from == ""


def test_launches_that_were_not_recorded_are_other(tmp_path: Path) -> None:
    script = Script()
    launch = Launcher(script)
    script.step(3, 0, STEP)
    launch(10)
    script.kernel("gemm", launch.at, launch.at + 7 * US)
    launch.at += 7 * US
    script.evaluate(100, 200)
    launch(150, ENGINE)
    assert compute_us(report(script, tmp_path).steps[0])[Phase.OTHER] == 7


def test_steps_are_told_by_what_they_launched_not_by_the_cpus_clock(tmp_path: Path) -> None:
    """The GPU runs a step and a half behind; what step 1 launched last runs in step 2's window and counts there."""
    script = Script()
    for number in (1, 2, 3):
        at = (number - 1) * STEP
        script.step(number, at, at + STEP - 10)
        script.evaluate(at + 100, at + 200)
        script.kernel("gemm", (100 + number * 50) * US, (140 + number * 50) * US, at + 10)
        script.kernel("ncclDevKernel_AllReduce", (140 + number * 50) * US, (160 + number * 50) * US, at + 150, stream=9)
    script.kernel("gemm", 0, 100 * US)
    one, two, three = report(script, tmp_path).steps
    assert [step.whole for step in (one, two, three)] == [True, True, False]
    assert (two.split.total, two.split.compute, two.split.exposed_communication) == (50 * US, 40 * US, 10 * US)
    assert two.communication == 20 * US
    assert three.split.exposed_communication == 20 * US
    assert [len(step.calls) for step in (one, two, three)] == [1, 1, 1]


def test_a_first_step_without_earlier_kernels_is_not_whole(tmp_path: Path) -> None:
    """The profiler drops kernels at the start of its session (pytorch#192021)."""
    script = Script()
    for number in (1, 2, 3):
        script.step(number, number * STEP, number * STEP + STEP - 10)
        script.kernel("gemm", number * 50 * US, (number * 50 + 40) * US, number * STEP + 10)
    assert [step.whole for step in report(script, tmp_path).steps] == [False, True, False]


def test_a_step_without_kernels_is_said(tmp_path: Path) -> None:
    script = Script()
    for number in (1, 2, 3):
        script.step(number, number * STEP, number * STEP + STEP - 10)
        if number != 2:
            script.kernel("gemm", number * 50 * US, (number * 50 + 40) * US, number * STEP + 10)
    found = report(script, tmp_path)
    assert "step 2 launched nothing on the GPU" in found.notes
    assert [(step.number, step.whole) for step in found.steps] == [(1, False), (3, False)]


@pytest.mark.parametrize("how", ["launch", "graph id"])
def test_cuda_graphs_have_no_phases_and_say_so(how: str, tmp_path: Path) -> None:
    """All kernels of a graph have the one launch: forward and backward in one, as torchtitan 0.3 captures them."""
    script = Script()
    script.step(3, 0, STEP)
    script.evaluate(500, 600)
    correlation = script.launch(100, name="cudaGraphLaunch" if how == "launch" else "cudaLaunchKernel")
    for at in range(10):
        graph = {"graph_id": 4} if how == "graph id" else {}
        script.kernel("gemm", at * 10 * US, (at * 10 + 9) * US, correlation=correlation, **graph)
    script.kernel("adam", 100 * US, 105 * US, 900)
    found = report(script, tmp_path)
    assert found.phases_from == ""
    assert found.steps[0].phases == ()
    assert (found.steps[0].split.compute, found.steps[0].split.idle) == (95 * US, 10 * US)
    (note,) = found.notes
    assert "CUDA graphs launch 10 of 11 events (95% of the time): numbers are per step only" in note
    assert "--training.disable_cuda_graphs" in note


def test_a_graph_inside_an_annotation_has_its_phase(tmp_path: Path) -> None:
    script = Script()
    script.step(3, 0, STEP)
    script.annotate("scaleperf.backward", 500, 600)
    script.annotate("scaleperf.optimizer", 700, 800)
    for when, start in ((550, 0), (750, 100)):
        correlation = script.launch(when, name="cudaGraphLaunch")
        for at in range(5):
            script.kernel("gemm", (start + at * 10) * US, (start + at * 10 + 9) * US, correlation=correlation)
    assert compute_us(report(script, tmp_path).steps[0]) == {Phase.LAST_BACKWARD: 45, Phase.OPTIMIZER: 45}


@pytest.mark.parametrize(
    ("step", "said"), [(True, "neither scaleperf annotations nor calls of autograd"), (False, "no ProfilerStep")]
)
def test_why_phases_are_not_told(step: bool, said: str, tmp_path: Path) -> None:  # noqa: FBT001 - a parameter
    script = Script()
    if step:
        script.step(3, 0, STEP)
    script.kernel("gemm", 0, 5 * US, 10)
    found = report(script, tmp_path)
    assert any(said in note for note in found.notes)
    assert not found.steps[0].whole
