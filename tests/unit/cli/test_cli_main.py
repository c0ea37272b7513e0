"""The command line as a script sees it: what goes to which stream, with which exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from changefeed.cli.config_file import read, read_accepted
from changefeed.cli.lifecycle import validate
from changefeed.cli.main import main
from changefeed.errors import Fenced, ForeignConfig, NeedsHuman, Unavailable
from changefeed.model.tso import compose
from changefeed.spec.parse import digest
from changefeed.upstream.tikv.access import TikvAccess

ROOT = Path(__file__).parents[3]
RESOURCE = """
apiVersion: changefeed.dev/v1alpha1
kind: Changefeed
metadata: {name: orders, namespace: shop}
spec:
  upstream: {pdAddresses: ["http://127.0.0.1:2379"]}
  sink: {storage: {uri: file://./lake, protocol: csv}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "orders.yaml"
    path.write_text(RESOURCE)
    return path


def _json(out: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(out)
    return answer


def test_validate(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "-f", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: changefeed shop/orders is valid: *.* to file://./lake\n"
    assert main(["validate", "-f", str(file), "--json"]) == 0
    answer = _json(capsys.readouterr().out)
    assert answer["ok"] is True
    assert answer["effective"]["spec"]["sink"]["storage"]["fileSize"] == "64Mi"


def test_validate_shows_all_problems_on_stderr(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(RESOURCE.replace("csv}", "csv, fileSiz: 1Mi}").replace("name: orders", "name: ORDERS"))
    assert main(["validate", "-f", str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "error: The resource has 2 problems:\n"
        '- metadata.name: "ORDERS"; allowed: 1 to 45 characters: lower-case letters, digits, - inside; a letter first\n'
        "- unknown field spec.sink.storage.fileSiz; did you mean fileSize?\n"
        "next: Fix it, then run `changefeed validate -f FILE` again.\n"
    )


def test_validate_gives_problems_as_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(RESOURCE.replace("name: orders", "name: ORDERS"))
    assert main(["validate", "-f", str(file), "--json"]) == 2
    out, err = capsys.readouterr()
    assert err == ""
    error = _json(out)["error"]
    assert (error["class"], error["problems"][0]["field"]) == ("InvalidResource", "metadata.name")
    assert error["problems"][0]["value"] == '"ORDERS"'


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["validate", "-f", "nowhere.yaml"], "can't read nowhere.yaml: No such file or directory"),
        (["validate"], "--file"),
        (["validat"], 'Did you mean "validate"?'),
        (["tso", "parse", "12x"], "'12x' is not a ts"),
        (["tso", "parse", str(1 << 64)], "allowed: digits, a number below 2^64"),
        (["tso", "at", "2026-01-31T12:00:00"], "has no time zone; allowed: ISO 8601 with a time zone"),
        (["tso", "at", "1969-12-31T23:59:59Z"], "allowed: from 1970 on"),
        (["tso", "at", "yesterday"], "'yesterday' is not a time"),
        (["verify"], "-f FILE, or --uri URI with --pd ADDRESS"),
        (["verify", "--uri", "file:///x"], "-f FILE, or --uri URI with --pd ADDRESS"),
        (["verify", "-f", "x", "--pd", "y"], "-f FILE, or --uri URI with --pd ADDRESS"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert (out, "Traceback" in err) == ("", False)
    assert main([*arguments, "--json"]) == 2
    out, err = capsys.readouterr()
    assert said in _json(out)["error"]["message"]
    assert err == ""


def test_a_file_that_is_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe")
    assert main(["validate", "-f", str(tmp_path / "x.yaml")]) == 2
    assert "is not UTF-8 text" in capsys.readouterr().err
    assert main(["validate", "-f", str(tmp_path)]) == 2
    assert "Is a directory" in capsys.readouterr().err


@pytest.mark.parametrize("master", ["local", "local[2,8]", "local[4,1]", "local[x,8]", "yarn", "local[,8]"])
def test_run_refuses_a_master_on_which_it_would_hang(
    master: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "-f", str(file), "--master", master]) == 2
    assert "local[N,8] with N from 3 on" in capsys.readouterr().err


def test_run_warns_of_a_password_in_clear_text(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sink = "{mysql: {uri: 'mysql://db.prod:3306', credentials: {secretRef: {name: writer}}}}"
    file.write_text(RESOURCE.replace("{storage: {uri: file://./lake, protocol: csv}}", sink))
    main(["run", "-f", str(file), "--master", "local[1,8]"])
    out, err = capsys.readouterr()
    assert "warning: spec.sink.mysql.credentials go to db.prod in clear text" in err
    assert "warning" not in out


def test_run_refuses_a_paused_changefeed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(RESOURCE + "  paused: true\n")
    assert main(["run", "-f", str(file)]) == 2
    assert "spec.paused: true: a paused changefeed does not run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [(NeedsHuman("Stopped.", "Look."), 1), (Unavailable("PD is away."), 69), (Fenced("A newer driver."), 75)],
)
def test_an_error_gives_its_own_exit_code(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    def fail(_: Path) -> None:
        raise error

    monkeypatch.setattr(validate, "read", fail)
    assert main(["validate", "-f", str(file), "--json"]) == code
    assert _json(capsys.readouterr().out)["error"]["class"] == type(error).__name__


@pytest.mark.parametrize("verb", ["run", "hold", "close"])
def test_another_config_than_the_operator_accepted_is_refused(
    verb: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CHANGEFEED_CONFIG_DIGEST", digest(file.read_bytes()))
    monkeypatch.setenv("CHANGEFEED_TERMINATION_LOG", str(tmp_path / "termination"))
    assert read_accepted(file) == read(file)
    accepted = digest(file.read_bytes())
    file.write_text(RESOURCE.replace("./lake", "./other"))
    assert main([verb, "-f", str(file)]) == ForeignConfig.exit_code == 75
    assert f"the operator accepted {accepted}" in capsys.readouterr().err
    assert json.loads((tmp_path / "termination").read_text())["class"] == "ForeignConfig"
    assert main(["validate", "-f", str(file)]) == 0, "any file can be checked, in a pod too"


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    monkeypatch.setattr(validate, "read", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["validate", "-f", str(file)])


def test_tso_there_and_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tso", "at", "2026-01-31T12:00:00.250+01:00", "--json"]) == 0
    answer = _json(capsys.readouterr().out)
    assert answer == {
        "ts": str(compose(1769857200250)),
        "time": "2026-01-31T11:00:00.250+00:00",
        "physical_ms": 1769857200250,
        "logical": 0,
    }
    assert main(["tso", "parse", str(int(answer["ts"]) + 7)]) == 0
    assert capsys.readouterr().out == f"{compose(1769857200250, 7)}  2026-01-31 11:00:00.250 UTC, logical 7\n"
    assert main(["tso", "parse", str((1 << 64) - 1)]) == 0


@pytest.mark.parametrize("command", [[], ["validate"], ["run"], ["verify"], ["tso"], ["tso", "parse"]])
def test_help_shows_examples(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--help"]) == 0
    assert f"changefeed {' '.join(command)}".strip() in capsys.readouterr().out.partition("Example")[2]


def test_help_and_validate_load_nothing_heavy(file: Path) -> None:
    script = (
        "import sys; from changefeed.cli.main import main; main(['--help']); "
        f"main(['validate', '-f', {str(file)!r}]); main(['tso', 'parse', '1']); "
        "heavy = {'pyspark', 'pyarrow', 'grpc', 'polars', 'numpy'} & sys.modules.keys(); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("name", "cores", "pullers"), [("demo.yaml", 4, 2), ("demo-postgresql.yaml", 3, 1)])
def test_the_demo_resources_are_valid_and_leave_room_beside_their_pullers(
    name: str, cores: int, pullers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", "-f", str(ROOT / "examples" / name), "--json"]) == 0
    spec = _json(capsys.readouterr().out)["effective"]["spec"]
    assert spec["sink"]["storage"]["csv"]["includeCommitTs"] is True
    assert spec["spark"]["executor"]["instances"] * spec["spark"]["executor"]["cores"] == cores
    assert spec["spark"]["pullers"]["count"] == pullers


def _verify_finds(monkeypatch: pytest.MonkeyPatch, **found: Any) -> list[Any]:
    """Let `verify` find this; gives the arguments of its calls."""
    from changefeed.verify.result import Result
    from changefeed.verify.storage import report

    calls: list[Any] = []

    async def verify(*arguments: Any) -> Result:
        calls.append(arguments)
        return Result(**found)

    monkeypatch.setattr(report, "verify", verify)
    return calls


def test_verify_holds(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    calls = _verify_finds(monkeypatch, rows=1234, tables=4)
    assert main(["verify", "-f", str(file), "--conserved", "balance"]) == 0
    assert main(["verify", "--uri", "file:///x", "--pd", "a:1", "--pd", "b:2"]) == 0
    (first, *asked, _), (second, *asked_too, _) = calls
    assert (first.uri, asked) == ((Path.cwd() / "lake").as_uri(), [TikvAccess(("http://127.0.0.1:2379",)), "balance"])
    assert (second.uri, asked_too) == ("file:///x", [TikvAccess(("a:1", "b:2")), None])
    out = capsys.readouterr().out
    assert "1,234" in out
    assert "Every promise holds up to the checkpoint." in out


def test_verify_finds_a_break(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _verify_finds(monkeypatch, ok=False, missing=1, first_problem="row 7 of bank.[accounts] is missing")
    assert main(["verify", "-f", str(file)]) == 4
    assert "A promise is broken: row 7 of bank.[accounts] is missing" in capsys.readouterr().out
    assert main(["verify", "-f", str(file), "--json"]) == 4
    answer = _json(capsys.readouterr().out)
    assert (answer["ok"], answer["missing"]) == (False, 1)
