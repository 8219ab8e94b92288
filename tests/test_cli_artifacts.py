"""`holdfast artifact`, and artifacts on other pages: listed, got out whole, and named when they are damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.cli import main
from holdfast.cli.artifacts import size
from holdfast.operating.shelved import told_in


@hf.step
def render(title: str) -> dict[str, hf.Artifact]:
    return {"page": hf.Artifact(title.encode(), name="my page.html")}


@hf.agent
def publish(folder: str) -> hf.Artifact:
    render("hello")
    return hf.Artifact(folder)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("a")
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path / "runs.db"))
    hf.run(publish, str(tmp_path / "code"), run_id="r")
    return str(tmp_path / "runs.db")


def digest_of(content: bytes) -> str:
    return hf.Artifact(content).digest


def test_the_artifacts_of_a_run_are_listed(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["artifact", "r"]) == 0
    told = capsys.readouterr().out
    assert "my page.html  5 bytes  text/html" in told
    assert "code           1 byte  folder" in told
    assert f"holdfast artifact r {digest_of(b'hello')[:12]} --to 'my page.html'" in told
    assert main(["artifact", "r", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["artifacts"]
    assert [each["kind"] for each in listed] == ["file", "tree"]


def test_one_comes_out_under_its_first_digits(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["artifact", "r", digest_of(b"hello")[:8], "--to", str(tmp_path / "page")]) == 0
    assert (tmp_path / "page").read_text() == "hello"
    assert main(["artifact", "r", hf.Artifact(tmp_path / "code").digest, "--to", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "a.py").read_text() == "a"
    assert "code (1 byte) is at" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["r", "ffffff", "--to", "x"], 1, "no artifact whose digest begins with 'ffffff'"),
        (["r", "", "--to", "x"], 1, "give 6 digits of the digest at least"),
        (["r", digest_of(b"hello")[:2], "--to", "x"], 1, "give 6 digits of the digest at least"),
        (["r", "abcdef"], 2, "say both DIGEST and --to PATH"),
        (["r", "--to", "x"], 2, "say both DIGEST and --to PATH"),
        (["nobody"], 1, "there is no run 'nobody'"),
    ],
)
def test_what_cannot_be_is_refused(store: str, capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: str) -> None:
    assert main(["artifact", *words]) == code
    assert said in capsys.readouterr().err


def test_a_path_that_is_taken_is_left_alone(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("mine")
    assert main(["artifact", "r", digest_of(b"hello"), "--to", str(tmp_path / "mine")]) == 1
    assert "is there already" in capsys.readouterr().err
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_step_is_shown_with_its_artifacts_in_words(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "r", "--at", "1"]) == 0
    told = capsys.readouterr().out
    assert f'"page": "artifact {digest_of(b"hello")[:12]}, my page.html, 5 bytes"' in told
    assert "Artifacts:" in told
    assert "--to 'my page.html'" in told
    assert main(["show", "r", "--at", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["at"]["result"]["page"]["artifact"] == digest_of(b"hello")


def test_a_check_reads_every_artifact(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--all"]) == 0
    inside = digest_of(b"a")
    path = tmp_path / "runs.db.blobs" / inside[:2] / inside[2:]
    path.unlink()
    assert main(["check", "r"]) == 4
    told = capsys.readouterr().out
    assert f"artifact 'code' ({inside[:12]}) of run 'r' is damaged: it is not there" in told
    assert "1 damaged artifact" in told
    assert main(["artifact", "r", hf.Artifact(tmp_path / "code").digest, "--to", str(tmp_path / "out")]) == 4
    assert not (tmp_path / "out").exists()


def test_sizes_are_for_people() -> None:
    assert [size(count) for count in (0, 1023, 1024, 1536 * 1024, 2 << 30, 5 << 50)] == [
        "0 bytes", "1023 bytes", "1.0 KiB", "1.5 MiB", "2.0 GiB", "5120.0 TiB",
    ]  # fmt: skip


def test_artifacts_are_found_wherever_they_stand() -> None:
    one = hf.Artifact(b"x").told()
    assert list(told_in({"a": [1, {"b": one}], "artifact": "text"})) == [one]
