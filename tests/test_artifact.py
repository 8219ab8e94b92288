"""Artifacts in values: kept once, given back as they were, checked when read, and referred to by what holds them."""

from __future__ import annotations

import contextvars
import copy
import dataclasses
import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from pydantic import BaseModel

import holdfast as hf
import starting
from crashing import dies_at, play, records
from holdfast._clock import SystemClock
from holdfast.codec.fingerprint import fingerprint
from holdfast.codec.values import codec_for
from holdfast.errors import ArtifactDamaged, StoreFailed, StoreFull
from holdfast.large import artifact
from holdfast.store import Shelf, Store, Swept
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore

LATE_US = 1 << 60
MIB = 1 << 20
AGENT = Path(__file__).parent / "agents_for_tests" / "artifact_agent.py"


class Report(BaseModel):
    parts: list[hf.Artifact]
    by_name: dict[str, hf.Artifact | None]
    cover: hf.Artifact | str


@dataclasses.dataclass
class Shelves:
    first: hf.Artifact
    number: int = 0


class Lasting(SqliteStore):
    """A store that `play` does not close."""

    def close(self) -> None:
        """Its runs are over; the store is needed again."""


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    store = MemoryStore() if request.param == "memory" else Lasting(tmp_path / "runs.db")
    yield store
    SqliteStore.close(store) if isinstance(store, SqliteStore) else store.close()


@hf.step
def make(text: str) -> hf.Artifact:
    return hf.Artifact(text.encode(), name=f"{text}.txt")


@hf.step
def bind(part: hf.Artifact, number: int) -> Report:
    return Report(parts=[part, hf.Artifact(b"%d" % number)], by_name={"part": part, "none": None}, cover="plain")


@hf.agent
def author(given: hf.Artifact) -> Report:
    shelves = hf.state(Shelves(given))
    shelves.number, shelves.first = 1, make("state")
    return bind(make("part"), 7)


def blobs(store: Store) -> Shelf:
    assert isinstance(store, Shelf)
    return store


def blob_file(tmp_path: Path, digest: str) -> Path:
    path = tmp_path / "runs.db.blobs" / digest[:2] / digest[2:]
    path.chmod(0o600)
    return path


def test_artifacts_come_back_from_whatever_they_stand_in(store: Store) -> None:
    for _ in range(2):  # the second time from the record
        report = play(store, author, hf.Artifact(b"given"))
        assert [part.bytes() for part in report.parts] == [b"part", b"7"]
        assert (report.by_name["part"].name, report.by_name["none"], report.cover) == ("part.txt", None, "plain")


def test_every_artifact_of_values_arguments_and_states_is_referred_to(store: Store) -> None:
    play(store, author, hf.Artifact(b"given"))
    assert blobs(store).sweep_blobs(LATE_US) == (0, 0)
    due = [hf.Artifact(text).digest for text in (b"given", b"state", b"part", b"7")]
    assert blobs(store).blob_refs("r") == sorted(due)


def test_json_that_looks_like_an_artifact_refers_to_nothing(store: Store) -> None:
    forged = {"artifact": "0" * 64, "size": 1, "kind": "file", "name": "x", "media_type": ""}

    @hf.step
    def fetch() -> dict[str, object]:
        return dict(forged)

    @hf.agent
    def agent() -> tuple[hf.Artifact, dict[str, object]]:
        return hf.Artifact(b"real"), fetch()

    assert play(store, agent)[1] == forged
    assert blobs(store).blob_refs("r") == [hf.Artifact(b"real").digest]


def test_a_run_without_artifacts_appends_no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "vouched", set())
    appended = []

    class Watching(MemoryStore):
        def append(self, batch, *, wait=True):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
            appended.extend(batch)
            return super().append(batch, wait=wait)

    @hf.agent
    def agent() -> str:
        return "plain"

    play(Watching(), agent)
    assert appended
    assert not any(one.refs for one in appended)


def test_equal_content_is_one_argument_whatever_its_name() -> None:
    one, same, other = hf.Artifact(b"x", name="a"), hf.Artifact(b"x", name="b", media_type="text/plain"), hf.Artifact(b"y", name="a")
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert fingerprint({"a": one}) == fingerprint({"a": same}) != fingerprint({"a": other})
    assert fingerprint({"a": one}) == fingerprint({"a": hf.Artifact(b"x")})


def test_an_artifact_of_a_step_is_not_made_again_on_replay(tmp_path: Path) -> None:
    source, calls = tmp_path / "source", []

    @hf.step
    def read() -> hf.Artifact:
        calls.append(1)
        return hf.Artifact(source)

    @hf.step
    def fail() -> None:
        if len(calls) == 1:
            calls.append(2)
            raise ConnectionError

    @hf.agent
    def agent() -> bytes:
        kept = read()
        fail()
        return kept.bytes()

    source.write_bytes(b"as it was")
    with pytest.raises(ConnectionError):
        hf.run(agent, run_id="r", store=tmp_path / "runs.db")
    source.unlink()
    assert hf.run(agent, run_id="r", store=tmp_path / "runs.db") == b"as it was"
    assert calls == [1, 2]


def test_a_file_that_changes_before_a_run_takes_it_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"before")
    given = hf.Artifact(source)
    assert given.size == 6
    source.write_bytes(b"behind")
    with pytest.raises(hf.Misuse, match="has changed since"):
        play(MemoryStore(), author, given)


def test_an_argument_is_read_from_the_store_when_its_file_is_gone(tmp_path: Path) -> None:
    source, store = tmp_path / "source", MemoryStore()
    source.write_bytes(b"given")

    @hf.agent
    def agent(given: hf.Artifact) -> bytes:
        source.unlink()
        return given.bytes()

    assert play(store, agent, hf.Artifact(source)) == b"given"


def test_an_operator_goes_on_with_the_recorded_arguments(store: Store, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("a")
    tried = []

    @hf.agent
    def agent(code: hf.Artifact, file: hf.Artifact) -> str:
        tried.append(1)
        if len(tried) == 1:
            raise ConnectionError
        return (code.path() / "a.py").read_text() + file.bytes().decode()

    with pytest.raises(ConnectionError):
        play(store, agent, hf.Artifact(tmp_path / "code"), hf.Artifact(b"file"))
    shutil.rmtree(tmp_path / "code")
    with hf.Holdfast(store) as app:
        assert app.resume_here("r", [agent], where="this test") == "afile"


@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_a_damaged_blob_is_never_given_out(tmp_path: Path, damage: str) -> None:
    part = hf.run(author, hf.Artifact(b"given"), run_id="r", store=tmp_path / "runs.db").parts[0]
    path = blob_file(tmp_path, part.digest)
    path.write_bytes(b"PART") if damage == "changed" else path.unlink()
    for read in (part.bytes, part.path, lambda: part.save(tmp_path / "saved")):
        with pytest.raises(hf.Damaged, match=rf"'part.txt' \({part.digest[:12]}\) of run 'r' is damaged") as caught:
            read()
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert list(tmp_path.glob("*saved*")) == []
    with hf.Holdfast(tmp_path / "runs.db") as app:
        (verdict,) = app.check("r")
    assert not verdict.good
    assert len(verdict.artifacts) == 1


def test_the_digest_of_a_stream_is_judged_at_its_end(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    with artifact.at_desk(artifact.Desk(store, SystemClock(), "r")):
        big = hf.Artifact(b"a" * (3 * MIB))
    path = blob_file(tmp_path, big.digest)
    path.write_bytes(b"a" * (3 * MIB - 1) + b"b")
    stream = big.open()
    assert stream.read(MIB) == b"a" * MIB
    with pytest.raises(ArtifactDamaged):
        stream.read()
    store.close()


def test_the_copy_at_path_is_made_once_and_again_when_somebody_changed_it(tmp_path: Path) -> None:
    given = hf.Artifact(b"content", name="../evil")
    path = given.path()
    assert (path.name, path.read_bytes(), path.stat().st_mode & 0o777) == ("artifact", b"content", 0o444)
    assert given.path() == path
    path.chmod(0o644)
    path.write_bytes(b"scribble")
    again = given.path()
    assert (again.read_bytes(), again == path) == (b"content", False)


@pytest.mark.parametrize("name", ["", "..", "a/../b", "a\0b", "n" * 256, "\N{SNOWMAN}" * 100])
def test_a_name_that_no_file_can_have_does_not_keep_the_copy_from_being_made(name: str) -> None:
    path = hf.Artifact(b"named", name=name).path()
    assert (path.name, path.read_bytes()) == ("artifact", b"named")


def test_saving_never_writes_over_anything(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    for to in (tmp_path / "there", tmp_path / "no" / "folder"):
        with pytest.raises(hf.Misuse, match="nothing was written"):
            hf.Artifact(b"x").save(to)
    assert (tmp_path / "there").read_text() == "mine"
    assert hf.Artifact(b"x").save(tmp_path / "new").read_bytes() == b"x"


def test_an_artifact_of_another_store_is_copied_over(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("a")

    @hf.agent
    def snapshot(folder: str) -> hf.Artifact:
        return hf.Artifact(folder)

    @hf.agent
    def take(code: hf.Artifact, file: hf.Artifact) -> tuple[hf.Artifact, hf.Artifact]:
        return code, file

    first, second = MemoryStore(), MemoryStore()
    code = play(first, snapshot, str(tmp_path / "code"))
    file = play(first, snapshot, str(tmp_path / "code" / "a.py"), run_id="file")
    taken, same = play(second, take, code, file)
    first._blobs.clear()
    assert ((taken.path() / "a.py").read_text(), same.bytes()) == ("a", b"a")
    assert second.sweep_blobs(LATE_US) == (0, 0)


def test_a_blob_that_was_swept_before_its_record_stops_the_run_and_is_made_again(store: Store) -> None:
    swept: list[Swept] = []

    @hf.step
    def late() -> hf.Artifact:
        made = hf.Artifact(b"late")
        if not swept:
            swept.append(blobs(store).sweep_blobs(LATE_US))
        return made

    @hf.agent
    def agent() -> hf.Artifact:
        return late()

    with pytest.raises(StoreFailed, match="not there; nothing that refers to it was recorded"):
        play(store, agent)
    assert swept == [(1, 4)]
    assert [record.kind for record in records(store)][:1] == ["run.started"]
    assert play(store, agent).bytes() == b"late"


def test_a_store_that_fails_at_the_record_leaves_a_blob_for_the_sweep() -> None:
    store = dies_at("step.done")
    with pytest.raises(StoreFailed):
        play(store, author, hf.Artifact(b"given"))
    store.mend()
    assert store.sweep_blobs(LATE_US).blobs == 1
    assert play(store, author, hf.Artifact(b"given")).parts[1].bytes() == b"7"
    assert store.sweep_blobs(LATE_US) == (0, 0)


def test_a_store_that_cannot_keep_blobs_says_so() -> None:
    class Plain:
        def __init__(self) -> None:
            self._store, self.url, self.inline = MemoryStore(), "plain:", True

        def __getattr__(self, name: str) -> object:
            if "blob" in name:
                raise AttributeError(name)
            return getattr(self._store, name)

    with pytest.raises(hf.Misuse, match="keeps no artifacts"), artifact.at_desk(artifact.Desk(Plain(), SystemClock(), "r")):
        hf.Artifact(b"x")


class Full(MemoryStore):
    def keep_blob(self, chunks: Iterable[bytes], *, at_us: int, parts: Sequence[str] = ()) -> str:
        raise StoreFull(self.url, "there is no room")


@pytest.mark.parametrize("annotation", [list[hf.Artifact], list[hf.Artifact | None], list[hf.Artifact | str], list[str | hf.Artifact]])
def test_a_store_that_fails_while_a_value_is_encoded_is_not_taken_for_a_bad_value(annotation: object) -> None:
    codec = codec_for(annotation, "the result")
    with artifact.at_desk(artifact.Desk(Full(), SystemClock(), "r")):
        with pytest.raises(StoreFull):
            codec.keep([artifact_made_outside()])
        with pytest.raises(hf.NotKept):
            codec.keep([object()])


def artifact_made_outside() -> hf.Artifact:
    return contextvars.Context().run(hf.Artifact, b"x")


@pytest.mark.parametrize("source", [7, None, "/no/such/file", os.devnull])
def test_what_cannot_be_an_artifact_is_refused(source: object) -> None:
    with pytest.raises(hf.Misuse, match="nothing was kept"):
        hf.Artifact(source)  # type: ignore[arg-type]
    with pytest.raises(hf.Misuse, match="several patterns"):
        hf.Artifact(".", ignore="*.pyc")


def test_without_an_annotation_an_artifact_is_not_kept() -> None:
    @hf.agent
    def agent():  # type: ignore[no-untyped-def] # noqa: ANN202
        return hf.Artifact(b"x")

    with pytest.raises(hf.NotKept, match="Artifact"):
        play(MemoryStore(), agent)


def test_an_artifact_survives_copies_and_pickling(tmp_path: Path) -> None:
    one = hf.Artifact(b"x", name="x")
    assert copy.deepcopy([one])[0] is one
    assert copy.copy(one) is one
    back = pickle.loads(pickle.dumps(one))
    assert (back, back.name) == (one, "x")
    with pytest.raises(hf.Misuse, match="does not know its store"):
        back.bytes()


def test_large_files_do_not_pass_through_memory(tmp_path: Path) -> None:
    program = """
import resource
import holdfast as hf

@hf.agent
def agent(path: str) -> hf.Artifact:
    kept = hf.Artifact(path)
    with kept.open() as stream:
        while stream.read(1 << 20):
            pass
    return kept

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

open("small", "wb").write(b"x")
with hf.Holdfast("runs.db") as app:
    app.run(agent, "small", run_id="small").path()
    before = peak()
    kept = app.run(agent, "large", run_id="large")
    kept.path()
    print((peak() - before) // 1024, kept.size)
"""
    with (tmp_path / "large").open("wb") as file:
        for number in range(300):
            file.seek(number * MIB)
            file.write(b"%d" % number)
        file.truncate(300 * MIB)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    grown_mib, size = map(int, done.stdout.split())
    assert size == 300 * MIB
    assert grown_mib < 30


@pytest.mark.parametrize(("error", "kind"), [("ENOSPC", "StoreFull"), ("EIO", "StoreFailed")])
def test_a_disk_that_refuses_a_blob_stops_the_run_and_it_goes_on(tmp_path: Path, error: str, kind: str) -> None:
    SqliteStore(tmp_path / "runs.db").close()
    here, failed = AGENT.parent.parent, 0
    for number in (1, 4, 9):
        inject = ["-o", os.devnull, "-e", "trace=fsync", "-e", f"inject=fsync:error={error}:when={number}"]
        if starting.run(starting.under_strace(inject, AGENT, tmp_path), cwd=here, timeout=60).returncode:
            failed += 1
            assert json.loads((tmp_path / "store_error.json").read_text())[0] == kind
    assert failed >= 2
    starting.run([sys.executable, AGENT, tmp_path], cwd=here, timeout=60).check_returncode()
    assert json.loads((tmp_path / "result.json").read_text())[0] == "given"


def test_an_artifact_among_arguments_is_shown_by_its_name(tmp_path: Path) -> None:
    @hf.effect(in_doubt="ask")
    async def mail(report: hf.Artifact, copies: list[hf.Artifact]) -> None:
        raise TimeoutError

    @hf.agent
    async def mailer() -> None:
        report = hf.Artifact(b"hello", name="report.md")
        await mail(report, [report])

    with hf.Holdfast(tmp_path / "runs.db") as app:
        with pytest.raises(hf.RunWaiting):
            app.run(mailer, run_id="r", wait=False)
        named = f"\"<Artifact 'report.md' {hashlib.sha256(b'hello').hexdigest()[:12]}>\""
        assert f"mail(report={named}, copies=[{named}])" in app.inbox()[0].what
