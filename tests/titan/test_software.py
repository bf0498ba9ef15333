"""The fingerprint probe: what an interpreter has, told by real interpreters and real checkouts."""

from __future__ import annotations

import dataclasses
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_scaleperf.model import LaunchError
from pytest_scaleperf.titan.software import Software, check, driver_version, fingerprint, probe
from tests.titan import cases

PLENTY = Software(
    interpreter=cases.PYTHON, python="3.11.7", torch="2.13.0", torchtitan="0.3.0", torchtitan_commit=None,
    triton="3.4.0", nccl="2.27.5", driver="575.57.08", scaleperf="0.1.0",
    modules=frozenset({"torch", "torchtitan", "triton", "pytest_scaleperf"}),
)  # fmt: skip


def site(folder: Path, *, direct_url: str | None = None) -> Path:
    """A folder of installed packages as pip leaves it: metadata, and the package itself."""
    for name, version, needs in (
        ("torch", "2.11.0", 'nvidia-nccl-cu12==2.27.5; platform_system == "Linux"'),
        ("torchtitan", "0.3.0", ""),
        ("nvidia_nccl_cu12", "2.27.5", ""),
        ("nvidia_nccl_cu13", "2.99.0", ""),
    ):
        metadata = folder / f"{name}-{version}.dist-info"
        metadata.mkdir(parents=True)
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {needs}"] if needs else []
        (metadata / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
        if name == "torchtitan" and direct_url:
            (metadata / "direct_url.json").write_text(direct_url, encoding="utf-8")
        if not name.startswith("nvidia"):
            package(folder, name)
    return folder


def package(folder: Path, name: str) -> Path:
    file = folder / name / "__init__.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('raise SystemExit("the probe imports nothing")\n', encoding="utf-8")
    return file


def checkout(folder: Path) -> tuple[Path, str]:
    """A git work tree that tracks a torchtitan, and its commit."""
    package(folder, "torchtitan")
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "x"]):
        subprocess.run(["git", "-C", str(folder), *arguments], check=True)
    head = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return folder, head.stdout.strip()


def ask(*path: Path, cwd: Path | None = None) -> Software:
    """Probe this interpreter with nothing but ``path`` before its own packages."""
    return probe(sys.executable, cases.inherited(PYTHONPATH=":".join(map(str, path))), cwd=cwd)


def test_versions_come_from_the_metadata_and_nothing_is_imported(tmp_path: Path) -> None:
    found = ask(site(tmp_path))
    assert (found.torch, found.torchtitan, found.nccl) == ("2.11.0", "0.3.0", "2.27.5")
    assert found.torchtitan_commit is None
    assert {"torch", "torchtitan"} <= found.modules
    assert found.interpreter == sys.executable


def test_an_interpreter_without_them_has_none(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    found = probe(str(bare / "bin" / "python"), {"PATH": "/usr/bin:/bin"}, cwd=tmp_path)
    assert (found.torch, found.torchtitan, found.triton, found.nccl, found.scaleperf) == (None,) * 5
    assert found.modules == frozenset()


def test_a_commit_that_pip_noted(tmp_path: Path) -> None:
    url = '{"url": "https://example.org/fork.git", "vcs_info": {"vcs": "git", "commit_id": "abc123"}}'
    assert ask(site(tmp_path, direct_url=url)).torchtitan_commit == "abc123"


def test_the_commit_of_a_checkout_and_its_changes(tmp_path: Path) -> None:
    folder, head = checkout(tmp_path / "fork")
    found = ask(folder)
    assert found.torchtitan_commit == head
    assert "torchtitan" in found.modules
    (folder / "notes.txt").write_text("untracked files change nothing\n", encoding="utf-8")
    assert ask(folder).torchtitan_commit == head
    (folder / "torchtitan" / "__init__.py").write_text("changed = True\n", encoding="utf-8")
    assert ask(folder).torchtitan_commit == f"{head}-dirty"


def test_the_job_s_own_folder_counts(tmp_path: Path) -> None:
    folder, head = checkout(tmp_path / "fork")
    assert ask(cwd=folder).torchtitan_commit == head


def test_a_checkout_hides_the_version_of_the_package_below_it(tmp_path: Path) -> None:
    folder, head = checkout(tmp_path / "fork")
    found = ask(folder, site(tmp_path / "site"))
    assert (found.torchtitan, found.torchtitan_commit) == (None, head)
    assert found.torch == "2.11.0"


def test_an_editable_install_has_both(tmp_path: Path) -> None:
    folder, head = checkout(tmp_path / "fork")
    url = f'{{"url": "file://{folder}", "dir_info": {{"editable": true}}}}'
    packages = site(tmp_path / "site", direct_url=url)
    shutil.rmtree(packages / "torchtitan")
    found = ask(packages, folder)
    assert (found.torchtitan, found.torchtitan_commit) == ("0.3.0", head)


def test_packages_inside_some_checkout_are_not_that_checkout(tmp_path: Path) -> None:
    folder, _ = checkout(tmp_path / "fork")
    found = ask(site(folder / ".venv" / "site-packages"))
    assert (found.torchtitan, found.torchtitan_commit) == ("0.3.0", None)


def test_it_is_fast(tmp_path: Path) -> None:
    """Processor time, as the machine may do other things as well; an import of torch alone takes over a second."""
    packages, seconds = site(tmp_path), []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        ask(packages)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 0.15


def test_a_missing_interpreter_is_named_with_the_way_out() -> None:
    with pytest.raises(LaunchError) as caught:
        probe("/nowhere/python", {})
    assert "/nowhere/python" in str(caught.value)
    assert "No such file" in str(caught.value)
    assert "pip install 'pytest-scaleperf[titan]'" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "shown"), [("echo oops >&2; exit 3", "exit code 3: 'oops'"), ("echo hello", "code 0")]
)
def test_what_is_no_interpreter_is_named(tmp_path: Path, text: str, shown: str) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    program.chmod(0o755)
    with pytest.raises(LaunchError) as caught:
        probe(str(program), {"PATH": "/usr/bin:/bin"})
    assert str(program) in str(caught.value)
    assert shown in str(caught.value)


def test_enough_is_enough() -> None:
    check(PLENTY, cases.trainer(), cases.dialect("0.3"))


@pytest.mark.parametrize(
    ("lacks", "words"),
    [
        ({"torchtitan"}, ["expected torchtitan in /opt/job/bin/python", "pip install 'pytest-scaleperf[titan]'"]),
        ({"torch", "torchtitan"}, ["expected torch and torchtitan in", "trainer.python"]),
        ({"pytest_scaleperf"}, ["/opt/job/bin/python -m pip install --no-deps pytest-scaleperf"]),
    ],
)
def test_what_is_missing_is_named_with_the_command(lacks: set[str], words: list[str]) -> None:
    found = dataclasses.replace(PLENTY, modules=PLENTY.modules - lacks)
    with pytest.raises(LaunchError) as caught:
        check(found, cases.trainer(), cases.dialect("0.3"))
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_team_s_own_entry_needs_nothing_of_ours() -> None:
    found = dataclasses.replace(PLENTY, modules=frozenset({"torch", "torchtitan"}))
    check(found, cases.trainer(entry="our_fork.train"), cases.dialect("0.3"))


def test_an_executable_is_asked_nothing() -> None:
    check(dataclasses.replace(PLENTY, modules=frozenset()), cases.trainer(executable="x"), cases.dialect("0.3"))


def test_a_version_that_the_dialect_does_not_speak_to() -> None:
    with pytest.raises(LaunchError, match=r"torchtitan >= 0\.2, < 0\.3 for trainer\.dialect '0\.2', found 0\.3\.0"):
        check(PLENTY, cases.trainer("0.2"), cases.dialect("0.2"))


def test_a_checkout_without_a_version_is_taken_at_its_word() -> None:
    check(dataclasses.replace(PLENTY, torchtitan=None), cases.trainer("0.2"), cases.dialect("0.2"))


def test_on_a_cpu_the_build_of_torch_for_accelerators_does_not_count() -> None:
    builds = [
        dataclasses.replace(PLENTY, torch=torch, nccl=nccl)
        for torch, nccl in (("2.13.0+cpu", None), ("2.13.0", "2.28"))
    ]
    first, second = (fingerprint("digest", build, "cpu", None) for build in builds)
    assert first == second
    assert first.torch == "2.13.0"
    assert fingerprint("digest", builds[0], "NVIDIA B200", None) != fingerprint(
        "digest", builds[1], "NVIDIA B200", None
    )


def test_the_fingerprint_holds_all_that_a_number_depends_on() -> None:
    ours = fingerprint("digest", PLENTY, "NVIDIA B200", 2.25e15)
    other = fingerprint("digest", dataclasses.replace(PLENTY, driver="580.1", torch="2.14.1"), "NVIDIA B200", 2.25e15)
    assert ours.differences(other) == {"driver": ("575.57.08", "580.1"), "torch": ("2.13.0", "2.14.1")}
    assert ours.peak_flops == 2.25e15


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n", "550.54.15"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build\nGCC version: 12\n",
            "575.57.08",
        ),
        ("GCC version:  gcc version 12.2.0 (Debian)\n", None),
        ("", None),
    ],
)
def test_the_driver_s_version_in_the_kernel_s_words(text: str, version: str | None) -> None:
    assert driver_version(text) == version
