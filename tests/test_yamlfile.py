from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pydantic
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_scaleperf.model import ActivationCheckpoint, BaselineError, SuiteError
from pytest_scaleperf.yamlfile import Data, dump, parse, read, reader, validate, write_atomic
from pytest_scaleperf.yamlfile.schema import FileModel, Fraction

CASES = Path(__file__).parent / "data" / "yaml"


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "file.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def faults_of(folder: Path, text: str | bytes) -> list[str]:
    path = written(folder, text)
    with pytest.raises(SuiteError) as caught:
        read(path, SuiteError)
    return [line.removeprefix(f"{path}:") for line in str(caught.value).splitlines()]


@pytest.fixture(params=["default", "without libyaml"])
def _loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without libyaml":
        monkeypatch.setattr(reader, "_loader", reader.PythonLoader)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("1", 1),
        ("-12", -12),
        ("+3", 3),
        ("0", 0),
        ("28_400", 28400),
        ("1e3", 1000.0),
        ("4.2e2", 420.0),
        ("1E3", 1000.0),
        ("2.25e+15", 2.25e15),
        ("1_000.5", 1000.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("-1e-07", -1e-7),
        ("true", True),
        ("False", False),
        ("TRUE", True),
        ("~", None),
        ("null", None),
        ("Null", None),
        ("", None),
        ("None", "None"),
        ("2026-11-30", "2026-11-30"),
        ("2026-11-30 12:00:00", "2026-11-30 12:00:00"),
        ("2.13.0+cpu", "2.13.0+cpu"),
        ("7,234", "7,234"),
        ("42.47%", "42.47%"),
        ("inf", "inf"),
        ("nan", "nan"),
        ("1__0", "1__0"),
        ("'no'", "no"),
        ('"010"', "010"),
        ("'1e3'", "1e3"),
        ("nothing", "nothing"),
        ("1:99", "1:99"),
    ],
)
@pytest.mark.usefixtures("_loader")
def test_plain_words_have_one_meaning(tmp_path: Path, word: str, value: Data) -> None:
    found = read(written(tmp_path, f"key: {word}\n"), SuiteError).data["key"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("word", [f(w) for w in ("no", "off", "n") for f in (str.lower, str.upper, str.capitalize)])
def test_words_that_yaml_1_1_reads_as_false_are_refused(tmp_path: Path, word: str) -> None:
    assert faults_of(tmp_path, f"a: 1\nmode: {word}\n") == [
        f"2: mode: expected none, true, false, or the word in quotes, found `{word}`, which YAML 1.1 reads as false"
    ]


@pytest.mark.parametrize("word", ["yes", "on", "y", "YES", "On", "Y"])
def test_words_that_yaml_1_1_reads_as_true_are_refused(tmp_path: Path, word: str) -> None:
    assert "which YAML 1.1 reads as true" in faults_of(tmp_path, f"mode: [{word}]\n")[0]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: 010", "1: a: expected a decimal number, or the text in quotes, found `010`"),
        ("a: 0o17", "found `0o17`, which YAML 1.1 and 1.2 read differently"),
        ("a: 0x1F", "found `0x1F`, which YAML 1.1 and 1.2 read differently"),
        ("a: 0b11", "found `0b11`"),
        ("a: 1:30", "found `1:30`, which YAML 1.1 reads as a number to the base 60"),
        ("a: 190:20:30.5", "to the base 60"),
        ("a: .inf", "1: a: expected a finite number, or the text in quotes, found `.inf`"),
        ("a: -.Inf", "found `-.Inf`"),
        ("a: .NaN", "found `.NaN`"),
        ("a: 1e999", "found `1e999`, which is too large"),
        (f"a: {'9' * 65}", "expected a number of at most 64 characters, or the text in quotes, found 65 characters"),
        ("x:\n  a: 1\n  b: 2\n  a: 3", "4: x.a: expected each key once, found `a` again; it is in line 2 already"),
        ("x: {a: 1, 'a': 3}", '1: x.a: expected each key once, found "a" again; it is in line 1 already'),
        ("on: 1", "1: on: expected a key that is text (put it in quotes), found `on`, which YAML 1.1 reads as true"),
        ("1: x", "1: 1: expected a key that is text (put it in quotes), found `1`"),
        ("1.5: x", "found `1.5`"),
        ("true: x", "found `true`"),
        ("~: x", "found `~`"),
        ("010: x", "1: 010: expected a key that is text"),
        ("? [a, b]\n: x", "expected text as a key, found a list of 2 values"),
        ("? {a: b}\n: x", "expected text as a key, found a mapping of 1 keys"),
        ("!!str k: x", "expected text as a key, found the tag `tag:yaml.org,2002:str`"),
        ("a: &b {c: 1}\nd:\n  <<: *b", "3: d.<<: expected every key written out, or an alias as a whole value"),
        ("a: !!python/name:os.system", "expected a value without a tag, found the tag `tag:yaml.org,2002:python/name"),
        ("a: !!int '3'", "1: a: expected a value without a tag"),
        ("a: !mine [1]", "found the tag `!mine`"),
        ("a: &a [*a]", "1: a[0]: expected an alias to something else, found an alias that contains itself"),
        ("a: 1\nb:\n\tc: 1", "3: column 1: expected spaces as indentation, found a tab"),
        ("a: [1, 2\nb: 3", "expected YAML, found an error:"),
        ("a: 1\n b: 2", "2: column 3: expected YAML, found an error: mapping values are not allowed"),
        ("a: *nothing", "1: column 4: expected YAML, found an error: found undefined alias"),
        ("a: 1\n---\nb: 2", "2: column 1: expected YAML, found an error: but found another document"),
        ("a: 1\nb: \x07", "2: expected printable text, found the character U+0007"),
        (b"a: 1\nb: \xff", "2: expected UTF-8 text, found the byte 0xff"),
        ("a: 1\n".encode("utf-16"), "1: expected UTF-8 text, found the byte 0xff"),
        ("- a\n- b", "1: expected a mapping (key: value), found a list of 2 values"),
        ("# nothing\n\njust text", "3: expected a mapping (key: value), found `just text`"),
        ("a: " + "[" * 60 + "]" * 60, "1: expected values at most 40 levels deep, found more"),
    ],
)
@pytest.mark.usefixtures("_loader")
def test_a_fault_says_line_key_expected_and_found(tmp_path: Path, text: str | bytes, fault: str) -> None:
    lines = faults_of(tmp_path, text)
    assert len(lines) == 1
    assert fault in lines[0]


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n"])
@pytest.mark.usefixtures("_loader")
def test_an_empty_file_is_no_mapping(tmp_path: Path, text: str) -> None:
    [line] = faults_of(tmp_path, text)
    assert "expected a mapping (key: value), found" in line


def test_all_faults_come_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    lines = faults_of(tmp_path, "a: no\nb: [1, off, {c: 1:30}]\na: 2\n7: x\n")
    assert [line.split(":")[0] for line in lines] == ["1", "2", "2", "3", "4"]
    assert [line.split(": ")[1] for line in lines] == ["a", "b[1]", "b[2].c", "a", "7"]


def test_aliases_are_values_but_may_not_multiply(tmp_path: Path) -> None:
    assert read(written(tmp_path, "a: &x [1, 2]\nb: *x\nc: {d: *x}\n"), SuiteError).data == {
        "a": [1, 2],
        "b": [1, 2],
        "c": {"d": [1, 2]},
    }
    bomb = "l0: &l0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]\n" for n in range(1, 10)
    )
    assert "expected aliases that repeat at most 100,000 values" in faults_of(tmp_path, bomb)[0]


@pytest.mark.usefixtures("_loader")
def test_nesting_that_exhausts_the_parser_is_a_fault(tmp_path: Path) -> None:
    [line] = faults_of(tmp_path, "a: " + "[" * 5000)
    assert "expected" in line


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BaselineError, match=r"nothing\.yaml: expected .* can be read, found: No such file"):
        read(tmp_path / "nothing.yaml", BaselineError)
    with pytest.raises(SuiteError, match="expected a YAML file, found a folder"):
        read(tmp_path, SuiteError)
    monkeypatch.setattr(reader, "MAX_BYTES", 1 << 20)
    with pytest.raises(SuiteError, match="expected at most 1 MiB, found more"):
        read(written(tmp_path, "a: " + "x" * (1 << 20)), SuiteError)


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    assert read(written(tmp_path, b"\xef\xbb\xbfa: 1\n"), SuiteError).data == {"a": 1}


def test_lines_and_words_of_values(tmp_path: Path) -> None:
    text = "# comment\na:\n  b: 1e3\n  c:\n    - x\n    - {d: '7'}\ne: {f: 1}\n"
    document = read(written(tmp_path, text), SuiteError)
    assert [document.line(loc) for loc in [(), ("a",), ("a", "b"), ("a", "c", 1, "d"), ("e", "f")]] == [2, 2, 3, 6, 7]
    assert document.line(("a", "c", 9)) == 4  # what is not there is where it would have to be
    assert document.line(("a", "nothing", "below")) == 2
    assert document.lines(("a",)) == {"b": 3, "c": 4}
    assert document.lines(("a", "b")) == {}
    assert document.text(("a", "b")) == "1e3"
    assert document.text(("a", "c", 1, "d")) == "7"
    assert document.text(("a", "c")) is None
    assert document.where(("a", "c", 1, "d")) == "a.c[1].d"
    assert document.where(("a", "b", 0)) == "a.b"


# Cases from real reports


class _Modes(FileModel):
    ac_modes: list[Annotated[ActivationCheckpoint, pydantic.Field(strict=False)]]


def test_case_ac_mode_no() -> None:
    case = CASES / "yaml-ac-mode-no"
    right = yaml.safe_load((case / "expected.yaml").read_text())["expect"]["right"]
    document = parse(case / "matrix.yaml", SuiteError)
    with pytest.raises(SuiteError) as caught:
        validate(document, _Modes, SuiteError)
    lines = str(caught.value).splitlines()
    for value in right["rejected_naming_value"]:
        assert sum(f"found `{value}`" in line for line in lines) == 1, value
    assert len(lines) == len(right["rejected_naming_value"])
    assert "False" not in str(caught.value)
    modes = document.data["ac_modes"]
    assert isinstance(modes, list)
    assert set(right["accepted"]) < set(modes)


def test_case_ac_mode_no_keys() -> None:
    with pytest.raises(SuiteError) as caught:
        read(CASES / "yaml-ac-mode-no" / "keys.yaml", SuiteError)
    lines = str(caught.value).splitlines()
    assert [line.split(":")[1] for line in lines] == ["1", "2", "3", "4"]
    assert all("expected a key that is text" in line for line in lines[:3])
    assert lines[3].endswith(
        "1: expected none, true, false, or the word in quotes, found `y`, which YAML 1.1 reads as true"
    )


class _Metrics(FileModel):
    metrics: dict[str, float]


def test_case_number_forms() -> None:
    case = CASES / "yaml-number-forms"
    right = yaml.safe_load((case / "expected.yaml").read_text())["expect"]["right"]
    document = parse(case / "baseline.yaml", BaselineError)
    metrics = document.data["metrics"]
    assert isinstance(metrics, dict)
    for name in ("tps", "tflops", "tokens", "peak"):
        assert metrics[name] == float(right[name]), name
    with pytest.raises(BaselineError) as caught:
        validate(document, _Metrics, BaselineError)
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[1] for line in lines] == ["metrics.tps_comma", "metrics.mfu", "metrics.memory"]
    assert lines[0].endswith("expected a number, found `7,234`; write 7234")
    assert lines[1].endswith("expected a number, found `42.47%`; write 42.47")
    assert lines[2].endswith("expected a finite number, or the text in quotes, found `.inf`")


# Faults of a schema


class _Inner(FileModel):
    mode: Annotated[ActivationCheckpoint, pydantic.Field(strict=False)] | None = None
    share: Fraction = 0.5


class _Outer(FileModel):
    steps: int = pydantic.Field(description="a whole number of steps", ge=1)
    name: str = "x"
    fast: bool = False
    rate: float = 1.0
    inner: _Inner | None = None
    several: list[_Inner] = pydantic.Field(default_factory=list)


def schema_faults(folder: Path, text: str) -> list[str]:
    path = written(folder, text)
    with pytest.raises(SuiteError) as caught:
        validate(parse(path, SuiteError), _Outer, SuiteError)
    return [line.removeprefix(f"{path}:") for line in str(caught.value).splitlines()]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("name: a", "1: steps: expected this key: a whole number of steps, found no such key"),
        ("steps: 0", "1: steps: expected a whole number of steps, found `0`"),
        ("steps: 1e3", "1: steps: expected a whole number of steps, found `1e3`; write 1000"),
        ("steps: '3'", '1: steps: expected a whole number of steps, found "3"; write 3'),
        ("steps: many", "1: steps: expected a whole number of steps, found `many`, which is text"),
        ("steps: true", "1: steps: expected a whole number of steps, found `true`"),
        ("steps: ~", "1: steps: expected a whole number of steps, found `~`"),
        ("steps:", "1: steps: expected a whole number of steps, found nothing after the colon"),
        ("steps: [1]", "1: steps: expected a whole number of steps, found a list of 1 values"),
        ("steps: 1\nname: 0.3", '2: name: expected text, found `0.3`, which is no text; write "0.3" in quotes'),
        ("steps: 1\nfast: 1", "2: fast: expected true or false, found `1`"),
        ("steps: 1\nrate: fast", "2: rate: expected a number, found `fast`, which is text"),
        ("steps: 1\ninner: 3", "2: inner: expected a mapping, found `3`"),
        (
            "steps: 1\nstep: 1",
            "2: step: expected one of the keys fast, inner, name, rate, several, steps, found `step`",
        ),
        ("steps: 1\nstep: 1", "; did you mean steps?"),
        (
            "steps: 1\ninner:\n  mod: full",
            "3: inner.mod: expected one of the keys mode, share, found `mod`; did you mean",
        ),
        ("steps: 1\nseveral:\n- {}\n- {sharing: 1 %}", "4: several[1].sharing: expected one of the keys mode, share"),
        (
            "steps: 1\ninner: {mode: Full}",
            "expected one of none, selective, full, memory_budget, found `Full`; did you",
        ),
        ("steps: 1\ninner: {share: 0}", "2: inner.share: expected a percentage such as 3 % or a fraction"),
        ("steps: 1\ninner: {share: 3}", "found `3`"),
        ("steps: 1\ninner: {share: 100 %}", "found `100 %`"),
        ("steps: 1\ninner: {share: -3 %}", "found `-3 %`"),
        ("steps: 1\ninner: {share: true}", "found `true`"),
    ],
)
def test_a_fault_of_the_schema(tmp_path: Path, text: str, fault: str) -> None:
    [line] = schema_faults(tmp_path, text)
    assert fault in line


def test_faults_of_yaml_and_schema_come_together_and_none_twice(tmp_path: Path) -> None:
    lines = schema_faults(tmp_path, "steps: no\nname: 3\nseveral: [{mode: off}, {mode: fulll}]\nfast: 2\nfast: 3\n")
    assert [line.split(": ")[1] for line in lines] == [
        "steps",
        "name",
        "several[0].mode",
        "several[1].mode",
        "fast",
        "fast",
    ]


@pytest.mark.parametrize(("written_as", "share"), [("3 %", 0.03), ("2.5%", 0.025), ("0.57 %", 0.0057), ("0.03", 0.03)])
def test_percentages_are_exact(tmp_path: Path, written_as: str, share: float) -> None:
    path = written(tmp_path, f"steps: 1\ninner: {{share: {written_as}}}\n")
    inner = validate(parse(path, SuiteError), _Outer, SuiteError).inner
    assert inner is not None
    assert inner.share == share


def test_what_a_file_holds_cannot_colour_the_screen(tmp_path: Path) -> None:
    [line] = schema_faults(tmp_path, 'steps: "\\e[31mred"\n')
    assert line == '1: steps: expected a whole number of steps, found "\\x1b[31mred", which is text'
    lines = faults_of(tmp_path, '"\\e[1m": 1\n"\\e[1m": no\n')
    assert all("\x1b" not in line for line in lines)
    assert schema_faults(tmp_path, 'steps: 1\n"st\\neps": 1\n')[0].endswith("found `st\\neps`; did you mean steps?")


# Writing

TEXT = st.text(st.characters(codec="utf-8"), max_size=30) | st.sampled_from(
    [
        "no",
        "1e3",
        "~",
        "",
        " a",
        "a ",
        "a: b",
        "#",
        "- x",
        "010",
        "1:30",
        "y",
        "<<",
        "=",
        "null",
        ".inf",
        "\x85",
        "%",
        "a,b",
    ]
)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
)
DATA = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=20
)


def in_order(data: Data) -> Data:
    if isinstance(data, dict):
        return {key: in_order(data[key]) for key in sorted(data)}
    return [in_order(item) for item in data] if isinstance(data, list) else data


@settings(deadline=None)
@given(st.dictionaries(TEXT, DATA, max_size=5))
def test_what_is_dumped_is_read_back_equal(tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]) -> None:
    text = dump(data)
    path = written(tmp_path_factory.getbasetemp(), text)
    document = read(path, SuiteError)
    assert repr(document.data) == repr(in_order(data))  # repr: 1, 1.0 and True are equal and not the same
    assert dump(document.data) == text
    if data:  # every key is found on the line that dump put it on
        lines = text.splitlines()
        for key, line in document.lines().items():
            assert lines[line - 1].startswith((key, '"')), (key, line)


def test_dump_is_sorted_and_one_line_a_sample() -> None:
    samples: list[Data] = [{"tps": 1523.1, "date": "2026-11-30", "note": "a" * 120}, {"tps": 2, "date": "x"}]
    assert dump({"b": {"samples": samples, "why": "no"}, "a": [1, 2.5, None, True, "x y"], "e": {}, "f": []}) == (
        "a: [1, 2.5, null, true, x y]\n"
        "b:\n"
        "  samples:\n"
        f"    - {{date: 2026-11-30, note: {'a' * 120}, tps: 1523.1}}\n"
        "    - {date: x, tps: 2}\n"
        '  why: "no"\n'
        "e: {}\n"
        "f: []\n"
    )


@pytest.mark.parametrize(
    "data", [{"a": float("inf")}, {"a": float("nan")}, {"k" * 1000: 1}, {"a": 10**70}, {"a": [{"b": float("-inf")}]}]
)
def test_dump_refuses_what_could_not_be_read(data: dict[str, Data]) -> None:
    with pytest.raises(ValueError, match="expected"):
        dump(data)


def test_write_atomic_replaces_and_keeps_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    write_atomic(path, "a: 1\n")
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    path.chmod(0o640)
    link = tmp_path / "link.yaml"
    link.symlink_to(path)
    write_atomic(link, "a: ä\n")
    assert link.is_symlink()
    assert path.read_text(encoding="utf-8") == "a: ä\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file.yaml", "link.yaml"]


def test_write_atomic_leaves_the_old_text_where_it_fails(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text("a: 1\n")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "a: \ud800")
    assert path.read_text() == "a: 1\n"
    assert [p.name for p in tmp_path.iterdir()] == ["file.yaml"]
    with pytest.raises(FileNotFoundError):
        write_atomic(tmp_path / "none" / "file.yaml", "")


def test_reading_and_writing_need_no_pydantic() -> None:
    heavy = {"pydantic", "torch", "pytest"}
    code = f"import sys, pytest_scaleperf.yamlfile; sys.exit(sorted({heavy} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
