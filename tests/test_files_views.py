"""What people see of a run in files: readable, put back after a crash, and never mistaken when somebody changed it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.errors import Damaged
from holdfast.store import Append
from holdfast.stores._files_views import TOGETHER, fold
from holdfast.stores.files import FilesStore
from holdfast.testing.sample import create, head, onward, repair, row


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FilesStore]:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    store = FilesStore(tmp_path / "runs")
    yield store
    store.close()


def views(store: FilesStore) -> list[Path]:
    return sorted(store.path.glob("runs/*/journal/*.json"))


@hf.step
def search(query: str) -> list[dict[str, object]]:
    return [{"text": f"süß {query}", "cents": 700}]


@hf.effect(in_doubt="ask")
def charge(cents: int) -> str:
    return f"r-{cents}"


@hf.agent
def buy(order: str) -> str:
    known = hf.state({"offers": 0})
    known["offers"] = len(search(order))
    return charge(700)


def test_a_run_can_be_read_with_a_pager(store: FilesStore) -> None:
    with hf.Holdfast(store) as app:
        app.run(buy, "o-47", run_id="order-47")
    assert [path.name for path in views(store)] == [
        "000001-run-started.json", "000002-search.json", "000003-charge-started.json", "000005-charge.json", "000006-run-done.json",
    ]  # fmt: skip
    text = views(store)[1].read_text()
    assert '"text": "süß o-47",\n' in text
    found = json.loads(text)["rows"][0]
    assert (found["kind"], found["args"], found["value"][0]["cents"]) == ("step.done", {"query": "o-47"}, 700)
    known = json.loads((store.path / "runs/order-47/state.json").read_text())
    assert (known["status"], known["state"]) == ("done", {"/state.1": {"offers": 1}})
    assert json.loads((store.path / "runs/order-47/run.json").read_text())["agent"] == "buy"


@hf.step
def hear(number: int) -> str:
    return "w" * number


tired: list[int] = []


@hf.agent
def learn(numbers: list[int]) -> None:
    known = hf.state({"words": ["w" * 2000]})
    for number in numbers:
        if number in tired:
            raise RuntimeError("tired")
        known["words"].append(hear(number))


@pytest.mark.parametrize("numbers", [[300, 301, 302, 303], [90_000, 301, 302, 303]])
def test_a_state_that_grows_or_is_large_is_shown_as_a_whole(
    store: FilesStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: list[int]
) -> None:
    def known() -> list[int]:
        told = json.loads((store.path / "runs/r/state.json").read_text())
        return [len(word) for word in told["state"]["/state.1"]["words"]]

    monkeypatch.setattr(sys.modules[__name__], "tired", [303])
    with hf.Holdfast(store) as app, pytest.raises(RuntimeError, match="tired"):
        app.run(learn, numbers, run_id="r")
    assert known() == [2000, *numbers[:3]]
    assert any('"value_text": "={' in view.read_text() for view in views(store)), "what was recorded is packed"
    tired.clear()
    with hf.Holdfast(FilesStore(tmp_path / "runs")) as app:
        app.run(learn, numbers, run_id="r")
    assert known() == [2000, *numbers]


def test_an_imported_run_gets_a_file_for_each_row(store: FilesStore) -> None:
    store.append([create("run", rows=5)])
    assert len(views(store)) == 5
    assert store.load("run") == (head("run", 5), [row(seq) for seq in range(1, 6)])
    store.append([onward("run", 5)])
    assert len(views(store)) == 6
    assert len(json.loads(views(store)[0].read_text())["rows"]) == 1
    store.append([onward("run", 6, rows=TOGETHER + 5)])
    assert len(views(store)) == 6 + TOGETHER + 5


@pytest.mark.parametrize("left", ["nothing", "gone", "half", "zeros"])
def test_a_view_that_a_power_loss_took_is_written_again(store: FilesStore, left: str) -> None:
    store.append([create("run")])
    (view,) = views(store)
    whole = view.read_bytes()
    half = whole[: len(whole) // 2]
    content = {"nothing": b"", "half": half, "zeros": half + bytes(len(whole) - len(half))}
    view.unlink() if left == "gone" else view.write_bytes(content[left])
    assert store.load("run") == (head("run", 1), [row(1)])
    assert view.read_bytes() == whole


def test_another_layout_of_the_same_is_no_change(store: FilesStore) -> None:
    store.append([Append("run", 0, 0, [row(1, value=b'{"a":[1,2]}')], head("run", 1))])
    (view,) = views(store)
    view.write_text(json.dumps(json.loads(view.read_text())))
    assert store.edited("run") == []
    assert store.load("run") is not None
    (view.parent / "notes.txt").write_text("mine")
    (view.parent / f"{view.name}~").write_text("an editor's")
    assert store.load("run") is not None


@pytest.mark.parametrize(
    ("old", "new"), [('"a": 1', '"a": 2'), ('"epoch": 1', '"epoch": 2'), ("step.done", "step.undone"), ("{", "["), ("digest", "tigest")]
)
def test_what_somebody_changed_is_found_and_named_with_its_path(store: FilesStore, old: str, new: str) -> None:
    store.append([Append("run", 0, 0, [row(1, value=b'{"a":1}')], head("run", 1)), create("other")])
    store.append([onward("run", 1)])
    view = next(path for path in views(store) if path.name.startswith("000001") and path.parts[-3] == "run")
    view.write_text(view.read_text().replace(old, new, 1))
    with pytest.raises(Damaged) as error:
        store.load("run")
    assert (error.value.seq, str(view) in error.value.what, "--adopt" in error.value.what) == (1, True, True)
    (found,) = store.edited("run")
    assert found.path == str(view)
    assert found.recorded == [row(1, value=b'{"a":1}')]
    assert found.now == ([row(1, value=b'{"a":2}')] if '"a"' in old else None)
    assert store.load("other") is not None


def test_records_that_were_doubled_or_changed_places_are_no_values(store: FilesStore) -> None:
    store.append([create("run")])
    store.append([onward("run", 1, rows=2)])
    view = views(store)[1]
    was = json.loads(view.read_text())
    for rows in ([*was["rows"], was["rows"][1]], was["rows"][::-1], was["rows"][:1]):
        view.write_text(json.dumps({**was, "rows": rows}))
        (found,) = store.edited("run")
        assert (found.now, "more than the value" in found.why) == (None, True)


def test_what_was_changed_is_put_back_and_kept_aside(store: FilesStore) -> None:
    store.append([Append("run", 0, 0, [row(1, value=b'{"a":1}')], head("run", 1))])
    (view,) = views(store)
    whole = view.read_text()
    view.write_text(whole.replace('"a": 1', '"a": 2'))
    with store.overlooking("run"):
        assert store.load("run") is not None
    with pytest.raises(Damaged):
        store.load("run")
    store.put_back("run")
    assert store.load("run") is not None
    assert view.read_text() == whole
    (kept,) = store.path.glob("runs/run/aside/edited-*")
    assert '"a": 2' in kept.read_text()
    assert store.aside("run") == []


def test_states_are_folded_along_the_path_that_stands() -> None:
    def saved(seq: int, value: bytes, kind: str = "state.saved", body: bytes = b"{}") -> object:
        return row(seq, body=body, value=value)._replace(kind=kind, step_id="/state.1")

    rows = [saved(1, b"1"), saved(2, b"2"), saved(5, b"5")]
    assert fold(rows) == {"/state.1": b"5"}  # type: ignore[arg-type]
    back = row(6, body=b'{"after":3}')._replace(kind="step.edited")
    assert fold([*rows, back]) == {"/state.1": b"2"}  # type: ignore[list-item]
    anew = row(7)._replace(kind="run.continued")
    assert fold([*rows, back, anew]) == {}  # type: ignore[list-item]


# --- while somebody else writes ------------------------------------------------------------------------------------


def reading(store: FilesStore, view: str, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], bytes | None]) -> None:
    """The next look at this view happens after `meanwhile`, or sees what that gives."""
    read = store._place.read

    def reads(name: str) -> bytes | None:
        if name.endswith(view):
            monkeypatch.undo()
            return meanwhile() or read(name)
        return read(name)

    monkeypatch.setattr(store._place, "read", reads)


def test_a_view_that_is_just_being_written_is_none_that_somebody_changed(store: FilesStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.append([create("run")])
    reading(store, "000001-step-done.json", monkeypatch, lambda: b'{"half of')
    assert store.load("run") == (head("run", 1), [row(1)])


def test_a_view_from_before_a_repair_may_become_that_of_a_new_commit_while_it_is_looked_at(
    store: FilesStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in (create("run"), onward("run", 1), onward("run", 2)):
        assert store.append([each]) == [None]
    view = store.path / "runs" / "run" / "journal" / "000003-step-done.json"
    late = view.read_bytes()
    assert store.set_aside(repair("run", rows=3, good=1))
    view.write_bytes(late)  # whoever wrote the commit was late with its view
    other = FilesStore(store.path)

    def appended() -> None:
        assert other.append([onward("run", 2, epoch=2)]) == [None]

    reading(store, view.name, monkeypatch, appended)
    found = store.load("run")
    other.close()
    assert found is not None
    assert found[0].seq == 2
    assert [one.seq for one in store.load("run")[1]] == [1, 2, 3]  # type: ignore[index]
