"""Verbs, the reading without a verb, and every way to misuse the command line."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_llm import FakeLLM, replaced

import minfer
import minfer.cli
from minfer.cli.app import VERBS, call, with_verb
from minfer.errors import RequestError, SettingsError


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> FakeLLM:
    fake = FakeLLM()
    monkeypatch.setattr("minfer.llm.LLM", replaced(fake))
    return fake


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ([], ["--help"]),
        (["--help"], ["--help"]),
        (["--version"], ["--version"]),
        (["list"], ["list"]),
        (["run", "smollm2", "hi"], ["run", "smollm2", "hi"]),
        (["smollm2", "hi"], ["run", "smollm2", "hi"]),
        (["-n", "3", "smollm2", "hi"], ["run", "-n", "3", "smollm2", "hi"]),
        (["models/x.gguf"], ["run", "models/x.gguf"]),
    ],
)
def test_the_verb_may_be_left_out(given: list[str], meant: list[str]) -> None:
    assert with_verb(given) == meant


def test_a_file_named_like_a_verb_is_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rnu").write_bytes(b"GGUF")
    assert with_verb(["rnu", "hi"]) == ["run", "rnu", "hi"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rnu", "smollm2"], "did you mean 'run'"),
        (["run", "m", "p", "--tmp", "1"], "No such option: --tmp"),
        (["run", "m", "p", "extra"], "unexpected extra argument"),
        (["run"], "MODEL"),
        (["run", "m", "p", "--temp", "hot"], "--temp"),
        (["run", "m", "p", "--top-p", "1.5"], "--top-p: value 1.5 is out of range; expected"),
        (["run", "m", "p", "--min-p", "-1"], "--min-p: value -1.0 is out of range"),
        (["run", "m", "p", "--temp", "nan"], "--temp: value nan is not a number"),
        (["run", "m", "p", "-n", "-2"], "--n-predict: value -2 is out of range"),
        (["run", "m", "p", "--mirostat", "1"], "--mirostat: mirostat 1 is not supported"),
        (["run", "m", "p", "--logit-bias", "five"], "value 'five' is not ID:BIAS"),
        (["run", "m", "p", "--stop", ""], "--stop: stop strings must not be empty"),
        (["run", "m", "p", "--cache-type", "q4_0"], "f16"),
        (["run", "m", "p", "--device", "gpu"], "'--device': 'gpu' is not one of 'auto'"),
        (["run", "m", ""], "the prompt is empty"),
        (["run", "m", "p", "--system", "s", "--no-template"], "needs the template"),
        (["run", "m", "p", "--dump-graph", "g.png"], "'g.png' ends in none of .txt, .dot, .json"),
        (["plan", "m", "--decode-rows", "-1"], "--decode-rows: value -1 is less than 0"),
        (["plan", "m", "--decode-rows", "0"], "a step needs a row"),
        (["plan", "m", "--format", "svg"], "json"),
    ],
)
def test_misuse_is_one_line_and_code_2(
    llm: FakeLLM, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert call(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
    assert llm.asked == []


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["--version"]) == 0
    assert capsys.readouterr().out == f"minfer {minfer.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["--help"], *([verb, "--help"] for verb in VERBS)])
def test_help(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert call(arguments) == 0
    assert "Usage" in capsys.readouterr().out


def test_help_is_quick_and_loads_no_engine() -> None:
    code = (
        "import sys; from minfer.cli.app import call; call(['--help']); "
        "print(sorted({'numpy', 'tokenizers', 'jinja2', 'minfer.llm'} & set(sys.modules)))"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert time.perf_counter() - start < 2  # 0.2 s alone on a machine


@pytest.mark.parametrize(
    ("error", "options", "code", "message"),
    [
        (RequestError("is 5", where="n_ctx"), ["-c", "5"], 2, "Invalid value for --n-ctx: is 5."),
        (RequestError("is 5", where="n_ctx"), [], 1, "[n_ctx] is 5"),
        (SettingsError("is -1", where="MINFER_THREADS"), ["-t", "-1"], 2, "--threads: is -1."),
        (SettingsError("is -1", where="MINFER_THREADS"), [], 2, "[MINFER_THREADS] is -1"),
    ],
)
def test_a_refused_option_is_named_as_it_was_written(
    llm: FakeLLM,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    options: list[str],
    code: int,
    message: str,
) -> None:
    llm.error = error
    assert call(["run", "m", "p", *options]) == code
    assert message in capsys.readouterr().err


def test_ctrl_c_before_the_command_is_there_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupting:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "minfer.cli.app":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "minfer.cli.app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as end:
        minfer.cli.main()
    assert end.value.code == 130
    assert capsys.readouterr() == ("", "")
