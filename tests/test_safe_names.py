"""Names of runs, steps and owners as file names: safe everywhere, and never two alike."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.store import Append
from holdfast.stores._safe_names import LONGEST, label, safe, unsafe
from holdfast.stores.files import FilesStore
from holdfast.testing.sample import create, head, row

TRICKS = [
    "plain", "Plain", "PLAIN", ".", "..", "...", "a/b", "a\\b", "../../etc/passwd", "nul\0byte", "trailing.", "trailing ", " leading",
    ".hidden", "a" * 255, "A" * 255, "a" * 254 + "b", "süß", "su\u0308ß", "\u212bngstrom", "\u00c5ngstrom", "日本", "🪝" * 80,
    "\u202egnirts", "\u200b", "%2e", "%2E", "^a", "~", "a~b", "con", "NUL", "-rf", "*", "?", "|", ":", '"', "<", ">", "\n", "\x7f",
    "x" * 120, "x" * 121, "½", "ﬁ", "\u0130", "\u0131",
]  # fmt: skip


@pytest.mark.parametrize("name", TRICKS)
def test_a_name_becomes_one_that_every_file_system_takes(name: str) -> None:
    found = safe(name)
    assert set(found) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.%^~")
    assert 0 < len(found) <= LONGEST
    assert not found.startswith(".")
    assert not found.endswith(".")


def test_no_two_names_become_one_even_where_case_and_spelling_do_not_count() -> None:
    found = {unicodedata.normalize("NFC", safe(name)).casefold() for name in TRICKS}
    assert len(found) == len(set(TRICKS))


@given(st.text(min_size=1, max_size=60))
def test_a_name_that_was_not_cut_comes_back(name: str) -> None:
    found = safe(name)
    assert unsafe(found) == (None if "~" in found else name)


@given(st.text(max_size=200))
def test_a_label_is_a_part_of_a_file_name(name: str) -> None:
    found = label(name)
    assert 0 < len(found) <= 60
    assert "/" not in found
    assert not found.startswith((".", "-"))


def test_runs_and_steps_with_every_trick_live_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # this is not about power loss
    store = FilesStore(tmp_path / "runs")
    for name in TRICKS:
        body = b'{"name":"x/../y"}'
        rows = [row(1, body=body)._replace(step_id=name, kind="step.done")]
        assert store.append([Append(name, 0, 0, rows, head(name, 1)._replace(note=name))]) == [None]
        store.post(name, "k", name.encode(), 1)
        store.publish(name, b"1")
    for name in TRICKS:
        loaded = store.load(name)
        assert loaded is not None
        assert (loaded[0].run_id, loaded[0].note, loaded[1][0].step_id) == (name, name, name)
        assert [letter.body for letter in store.letters([name])] == [name.encode()]
        assert store.append([create(name)])[0] is not None
    assert sorted(os.listdir(tmp_path)) == ["runs"]  # noqa: PTH208 (nothing escaped)
    assert sorted(store.check()) == sorted(f"run {name} belongs to me, which is not enrolled" for name in TRICKS)
    store.close()
