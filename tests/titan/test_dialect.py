"""Dialects: the two that come with the package, a fork's own, and every way to write one wrongly."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_scaleperf.model import ActivationCheckpoint, SuiteError
from pytest_scaleperf.titan.dialect import Dialect, known_dialects, load_dialect

SHIPPED = Path(load_dialect("0.3", relative_to=Path()).path)


def fork(folder: Path, old: str = "", new: str = "") -> Path:
    """A fork's file: the shipped one with one thing changed."""
    text = SHIPPED.read_text(encoding="utf-8")
    assert old in text
    path = folder / "our-fork.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(SuiteError) as caught:
        load_dialect(str(path), relative_to=Path("/"))
    return str(caught.value)


@pytest.mark.parametrize("name", known_dialects())
def test_a_shipped_dialect_says_every_activation_checkpointing_mode(name: str) -> None:
    dialect = load_dialect(name, relative_to=Path())
    said = {mode: dialect.say(f"activation_checkpoint.{mode}") for mode in ActivationCheckpoint}
    assert len(set(said.values())) == len(ActivationCheckpoint)
    assert dialect.name == name


def test_the_shipped_ones_are_the_two_generations() -> None:
    assert known_dialects() == ("0.2", "0.3")


def test_values_are_put_in_whole() -> None:
    dialect = load_dialect("0.3", relative_to=Path())
    assert dialect.say("model", module="our.models", config="{value}") == (
        "--module", "our.models", "--config", "{value}",
    )  # fmt: skip
    assert dialect.say("profiler", freq=10, active=2, warmup=3)[2:4] == ("10", "--profiler.profiler_active")


@pytest.mark.parametrize(
    ("version", "spoken_by"),
    [
        ("0.2.2", ["0.2"]),
        ("0.2", ["0.2"]),
        ("0.3.0", ["0.3"]),
        ("0.3.0.dev20260801+git1234", ["0.3"]),
        ("0.3.11", ["0.3"]),
        ("0.4.0", []),
        ("0.1.9", []),
        ("0.0.0+unknown", []),
        ("nightly", []),
    ],
)
def test_a_version_is_spoken_by_the_dialect_of_its_range(version: str, spoken_by: list[str]) -> None:
    dialects = [load_dialect(name, relative_to=Path()) for name in known_dialects()]
    assert [dialect.name for dialect in dialects if dialect.speaks(version)] == spoken_by


def test_an_unknown_name_lists_the_known_ones_and_the_way_out() -> None:
    with pytest.raises(SuiteError) as caught:
        load_dialect("0.4", relative_to=Path())
    assert '"0.2", "0.3"' in str(caught.value)
    assert "'0.4'" in str(caught.value)
    assert str(SHIPPED) in str(caught.value)


def test_a_fork_brings_its_own_by_path(tmp_path: Path) -> None:
    fork(tmp_path, "--training.seq_len", "--training.sequence_length")
    dialect = load_dialect("our-fork.yaml", relative_to=tmp_path)
    assert dialect.say("batch.sequence", value=4096) == ("--training.sequence_length", "4096")
    assert dialect.path == tmp_path / "our-fork.yaml"


def test_a_word_that_a_fork_leaves_out_cannot_be_said(tmp_path: Path) -> None:
    path = fork(tmp_path, '  ep: [--parallelism.expert_parallel_degree, "{value}"]\n')
    dialect: Dialect = load_dialect(str(path), relative_to=tmp_path)
    assert not dialect.has("layout.ep")
    with pytest.raises(SuiteError, match=r"our-fork\.yaml: expected arguments for layout\.ep"):
        dialect.say("layout.ep", value=2)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert str(tmp_path / "none.yaml") in refusal(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("old", "new", "key", "found"),
    [
        ("  steps:", "  step:", "run.step", "did you mean steps?"),
        ('[--training.steps, "{value}"]', "[--training.steps]", "run.steps", "{value}"),
        ('[--training.steps, "{value}"]', '[--training.steps, "{value}{rank}"]', "run.steps", "{value}"),
        ("[--comm.mode, fake_backend]", '[--comm.mode, "{value}"]', "switches.fake_backend", "without {placeholders}"),
        ('"{module}"', '"{model}"', "model", "{module} and {config}"),
        ('name: "0.3"', "name: 0.3", "name", 'write "0.3" in quotes'),
        ('before: "0.4"', 'before: "newest"', "torchtitan.before", '"newest"'),
        ("activation_checkpoint_last: true", "activation_checkpoint_last: yes", "activation_checkpoint_last", "yes"),
        ("name:", "name: x\nname:", "name", "line"),
        ("layout:", "layouts:", "layouts", "did you mean layout?"),
    ],
)
def test_a_fault_names_its_line_its_key_and_what_was_found(
    tmp_path: Path, old: str, new: str, key: str, found: str
) -> None:
    path = fork(tmp_path, old, new)
    line = path.read_text(encoding="utf-8").split(new)[0].count("\n") + 1
    message = refusal(path)
    assert key in message
    assert found in message
    assert any(f"{path}:{number}: " in message for number in (line, line + 1)), message


def test_every_fault_is_told_at_once(tmp_path: Path) -> None:
    path = fork(tmp_path, 'name: "0.3"', "name: 3")
    path.write_text(path.read_text(encoding="utf-8").replace("  local:", "  locale:"), encoding="utf-8")
    keys = [line.split(": ")[1] for line in refusal(path).splitlines()]
    assert sorted(keys) == ["batch.local", "batch.locale", "name"]
