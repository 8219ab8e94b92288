"""The conformance suite: every promise of `holdfast.store` as a test that any store can be held to.

    class TestMine(StoreConformance):
        def open(self, folder: Path) -> Store:
            return MyStore(folder / "runs")

Every test takes an open store, so that a deliberately broken one can be handed to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.store import (
    Append,
    Head,
    Query,
    Row,
    Stale,
    Store,
)
from holdfast.testing.following import LiveConformance
from holdfast.testing.metering import MeteredConformance
from holdfast.testing.pruning import PrunableConformance
from holdfast.testing.ringing import RingingConformance
from holdfast.testing.sample import (
    BIG,
    TRIES,
    WRITERS,
    WRITES,
    Bytes,
    Words,
    create,
    examples,
    head,
    keep,
    listed,
    onward,
    repair,
    repaired,
    row,
)
from holdfast.testing.shelf import ShelfConformance
from holdfast.testing.transactional import TransactionalConformance


class StoreConformance(
    ShelfConformance, LiveConformance, PrunableConformance, MeteredConformance, RingingConformance, TransactionalConformance
):
    """Override `open`. Set `lasting` to False for a store that is gone when it is closed."""

    lasting = True

    def open(self, folder: Path) -> Store:
        """Open the store that lives in `folder`, creating it the first time."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = self.open(tmp_path)
        yield store
        store.close()

    def test_it_is_a_store_with_a_printable_url(self, store: Store) -> None:
        assert isinstance(store, Store)
        assert store.url.isprintable()
        assert isinstance(store.inline, bool)

    # rows and heads

    def test_what_was_appended_is_loaded(self, store: Store) -> None:
        rows = [row(1, body=b'{"a":1}', value=b"v", args=b"a"), row(2, body=b"", value=b"", args=None)]
        kept = Head("run", "agent", "waiting", None, 1, 2, b"\0\xff", 9, 1, 2, '{"k":"v"}', 0.1, "waits")
        assert store.append([Append("run", 0, 0, rows, kept)]) == [None]
        assert store.load("run") == (kept, rows)
        assert store.head("run") == kept

    def test_loaded_values_have_their_types(self, store: Store) -> None:
        store.append([create("run")])
        loaded = store.load("run")
        assert loaded is not None
        assert type(loaded[0]) is Head
        assert [type(one) for one in loaded[1]] == [Row]
        assert type(loaded[1][0].body) is bytes

    def test_an_unknown_run_is_none(self, store: Store) -> None:
        assert store.load("nobody") is None
        assert store.head("nobody") is None

    def test_rows_come_back_by_seq(self, store: Store) -> None:
        store.append([create("run", rows=3)])
        for seq in range(3, 20):
            assert store.append([onward("run", seq)]) == [None]
        loaded = store.load("run")
        assert loaded is not None
        assert [one.seq for one in loaded[1]] == list(range(1, 21))
        assert loaded[0].seq == loaded[1][-1].seq

    def test_all_rows_of_an_append_are_kept(self, store: Store) -> None:
        store.append([create("run")])
        assert store.append([onward("run", 1, rows=5)]) == [None]
        loaded = store.load("run")
        assert loaded is not None
        assert loaded[1][1:] == [row(seq) for seq in range(2, 7)]

    def test_every_field_of_a_head_moves(self, store: Store) -> None:
        store.append([create("run")])
        moved = Head("run", "other", "failed", "you", 4, 2, b"new", 5, 6, 7, '{"a":"b"}', 1.5, "why")
        assert store.append([Append("run", 1, 1, [row(2, epoch=4)], moved)]) == [None]
        assert store.head("run") == moved
        kept = moved._replace(agent="third", seq=3, digest=b"3", wake_us=None, created_us=8, updated_us=9, tags="{}", usd=2.5, note="")
        assert store.append([Append("run", 4, 2, [row(3, epoch=4)], kept)]) == [None]
        assert store.head("run") == kept

    def test_a_head_that_goes_on_stands_behind_its_last_row_and_is_fenced(self, store: Store) -> None:
        kept = Head("run", "agent", "running", "me", 1, 1, b"digest-1", 5, 6, 7, '{"a":"b"}', 1.5, "why")
        store.append([Append("run", 0, 0, [row(1)], kept)])
        moved = kept._replace(seq=3, digest=b"digest-3", updated_us=9)
        onwards = Append("run", 1, 1, [row(2), row(3)], moved, goes_on=True)
        assert [store.append([onwards]), store.append([onwards])] == [[None], [Stale(moved)]]
        assert store.load("run") == (moved, [row(1), row(2), row(3)])

    def test_the_owner_of_a_head_comes_and_goes(self, store: Store) -> None:
        store.append([create("run")])
        for seq, owner in enumerate([None, None, "you", "me", "me", None], start=1):
            moved = head("run", seq + 1, owner=owner)
            assert store.append([Append("run", 1, seq, [row(seq + 1)], moved)]) == [None]
            assert store.head("run") == moved

    # fences

    def test_a_run_is_created_once(self, store: Store) -> None:
        assert store.append([create("run")]) == [None]
        assert store.append([create("run", rows=2)]) == [Stale(head("run", 1))]
        assert store.load("run") == (head("run", 1), [row(1)])

    def test_an_append_to_no_run_is_stale(self, store: Store) -> None:
        assert store.append([onward("run", 1)]) == [Stale(None)]
        assert store.load("run") is None

    @pytest.mark.parametrize("seq", [1, 3, 4])
    def test_another_seq_is_stale(self, store: Store, seq: int) -> None:
        store.append([create("run", rows=2)])
        assert store.append([onward("run", seq)]) == [Stale(head("run", 2))]
        assert store.load("run") == (head("run", 2), [row(1), row(2)])

    @pytest.mark.parametrize("epoch", [1, 3])
    def test_another_epoch_is_stale(self, store: Store, epoch: int) -> None:
        kept = head("run", 1, epoch=2)
        store.append([Append("run", 0, 0, [row(1)], kept)])
        assert store.append([onward("run", 1, epoch=epoch)]) == [Stale(kept)]
        assert store.load("run") == (kept, [row(1)])

    def test_a_claim_raises_the_epoch_and_shuts_the_old_owner_out(self, store: Store) -> None:
        store.append([create("run")])
        claimed = head("run", 2, epoch=2, owner="you")
        assert store.append([Append("run", 1, 1, [row(2, epoch=2)], claimed)]) == [None]
        assert store.append([onward("run", 1), onward("run", 2)][1:]) == [Stale(claimed)]
        assert store.append([onward("run", 1)]) == [Stale(claimed)]
        assert store.append([onward("run", 2, epoch=2)]) == [None]

    def test_one_of_two_claims_wins(self, store: Store) -> None:
        store.append([create("run")])
        claims = [Append("run", 1, 1, [row(2, epoch=2)], head("run", 2, epoch=2, owner=owner)) for owner in ("a", "b")]
        answers = [store.append([claim])[0] for claim in claims]
        assert answers == [None, Stale(claims[0].head)]

    def test_a_stale_append_fails_alone(self, store: Store) -> None:
        store.append([create("a"), create("b"), create("c")])
        assert store.append([onward("a", 1), onward("b", 9), onward("c", 1)]) == [None, Stale(head("b", 1)), None]
        assert [found.seq for found in map(store.head, "abc") if found] == [2, 1, 2]
        assert store.load("b") == (head("b", 1), [row(1)])

    def test_an_empty_batch_is_no_work(self, store: Store) -> None:
        assert store.append([]) == []

    def test_it_does_not_wait_when_told_so(self, store: Store) -> None:
        assert store.append([create("run")], wait=False) == [None]
        assert store.head("run") == head("run", 1)

    # listing

    def test_heads_are_listed_newest_change_first(self, store: Store) -> None:
        for run_id, updated_us, owner in [("a", 5, None), ("b", 9, "me"), ("c", 1, "me"), ("d", 7, None)]:
            keep(store, head(run_id, 1, updated_us=updated_us, owner=owner))
        assert listed(store, Query()) == ["b", "d", "a", "c"]
        store.append([Append("c", 1, 1, [row(2)], head("c", 2, updated_us=20))])
        assert listed(store, Query()) == ["c", "b", "d", "a"]

    def test_heads_come_whole(self, store: Store) -> None:
        keep(store, head("run", 1))
        assert store.heads(Query()) == [head("run", 1)]

    def test_heads_are_filtered_by_status(self, store: Store) -> None:
        for number, status in enumerate(["running", "done", "failed", "done"]):
            for owner in (None, "me"):
                keep(store, head(f"{status}{number}{owner}", 1, status=status, owner=owner, updated_us=number))
        assert listed(store, Query(statuses=["done"])) == ["done3None", "done3me", "done1None", "done1me"]
        assert listed(store, Query(statuses=["failed", "running"])) == ["failed2None", "failed2me", "running0None", "running0me"]
        assert listed(store, Query(statuses=["gone"])) == []

    def test_a_status_that_changed_is_listed_as_it_is_now(self, store: Store) -> None:
        keep(store, head("run", 1, status="running", owner="me"))
        store.append([Append("run", 1, 1, [row(2)], head("run", 2, status="done", owner=None))])
        assert listed(store, Query(statuses=["running"])) == []
        assert listed(store, Query(statuses=["done"])) == ["run"]

    def test_heads_are_filtered_by_agent(self, store: Store) -> None:
        for run_id, agent, owner in [("a", "x", None), ("b", "y", None), ("c", "x", "me"), ("d", "X", "me")]:
            keep(store, head(run_id, 1, owner=owner)._replace(agent=agent))
        assert sorted(listed(store, Query(agent="x"))) == ["a", "c"]

    def test_heads_are_filtered_by_owner(self, store: Store) -> None:
        for run_id, owner, status in [("a", None, "done"), ("b", "me", "running"), ("c", "you", "running"), ("d", "me", "done")]:
            keep(store, head(run_id, 1, owner=owner, status=status))
        assert sorted(listed(store, Query(owner="me"))) == ["b", "d"]
        assert listed(store, Query(owner="me", statuses=["running"])) == ["b"]
        assert listed(store, Query(owner="nobody")) == []

    def test_heads_are_filtered_by_idleness(self, store: Store) -> None:
        for run_id, updated_us in [("a", 10), ("b", 20), ("c", 30)]:
            keep(store, head(run_id, 1, updated_us=updated_us))
        assert listed(store, Query(idle_before_us=20)) == ["a"]
        assert listed(store, Query(idle_before_us=21)) == ["b", "a"]

    @pytest.mark.parametrize("owner", [None, "me"])
    def test_limit_and_offset_page_through_the_heads(self, store: Store, owner: str | None) -> None:
        for number in range(7):
            keep(store, head(f"r{number}", 1, updated_us=number, owner=owner, status=["done", "failed"][number % 2]))
        assert listed(store, Query(limit=3)) == ["r6", "r5", "r4"]
        assert listed(store, Query(limit=3, offset=3)) == ["r3", "r2", "r1"]
        assert listed(store, Query(limit=3, offset=6)) == ["r0"]
        assert listed(store, Query(limit=2, offset=1, statuses=["done"])) == ["r4", "r2"]

    @pytest.mark.parametrize("tag", ["plain", 'q"uote', "o'clock", "100%", "under_score", "süß 日本 🪝", "a.b[0]", "\\n", "", "1", "null"])
    def test_tags_match_only_when_equal(self, store: Store, tag: str) -> None:
        for run_id, tags in [("has", {tag: tag}), ("other", {tag: tag + "x"}), ("more", {tag + "x": tag}), ("none", {})]:
            for owner in (None, "me"):
                keep(store, head(run_id + str(owner), 1, owner=owner)._replace(tags=json.dumps(tags)))
        assert sorted(listed(store, Query(tags=[(tag, tag)]))) == ["hasNone", "hasme"]

    def test_all_tags_must_match(self, store: Store) -> None:
        for run_id, tags in [("both", {"a": "1", "b": "2"}), ("one", {"a": "1"}), ("swapped", {"a": "2", "b": "1"})]:
            keep(store, head(run_id, 1)._replace(tags=json.dumps(tags, ensure_ascii=False)))
        assert listed(store, Query(tags=[("a", "1"), ("b", "2")])) == ["both"]

    # who is to be woken

    def test_those_that_are_due_are_listed_the_earliest_first(self, store: Store) -> None:
        for run_id, wake_us, owner in [("late", 30, None), ("b", 20, None), ("a", 20, None), ("first", 10, None), ("owned", 10, "me")]:
            keep(store, head(run_id, 1, status="waiting", owner=owner)._replace(wake_us=wake_us))
        keep(store, head("never", 1, status="waiting", owner=None))
        assert listed(store, Query(due_by_us=9)) == []
        assert listed(store, Query(due_by_us=20)) == ["first", "a", "b"]
        assert listed(store, Query(due_by_us=99, limit=2)) == ["first", "a"]
        assert listed(store, Query(due_by_us=99, limit=2, offset=2)) == ["b", "late"]
        assert listed(store, Query(due_by_us=99, agent="other")) == listed(store, Query(due_by_us=99, statuses=["done"])) == []

    def test_those_who_are_due_are_listed_by_their_queue_and_from_any_place_on(self, store: Store) -> None:
        for run_id, wake_us, queue in [("a", 20, "q"), ("c", 10, "q"), ("b", 20, "q"), ("d", 15, "r"), ("late", 99, "q")]:
            keep(store, head(run_id, 1, status="waiting", owner=None)._replace(wake_us=wake_us, queue=queue))
        due = Query(due_by_us=50, statuses=["waiting"])
        assert listed(store, due) == ["c", "d", "a", "b"]
        assert listed(store, due._replace(queue="q")) == ["c", "a", "b"]
        assert listed(store, due._replace(behind=(10, "c"))) == ["d", "a", "b"]
        assert listed(store, due._replace(behind=(20, "a"), queue="q")) == ["b"]
        assert listed(store, due._replace(behind=(20, "b"))) == []

    def test_who_is_taken_or_wakes_later_is_due_no_more(self, store: Store) -> None:
        waiting = head("run", 1, status="waiting", owner=None)._replace(wake_us=10)
        keep(store, waiting)
        for seq, (owner, wake_us, due) in enumerate([("me", None, []), (None, 50, []), (None, 40, ["run"]), ("me", 40, [])], start=1):
            moved = waiting._replace(seq=seq + 1, owner=owner, wake_us=wake_us)
            assert store.append([Append("run", 1, seq, [row(seq + 1)], moved)]) == [None]
            assert listed(store, Query(due_by_us=40)) == due
            assert store.head("run") == moved

    def test_those_in_line_are_listed_in_their_turn_until_they_are_taken(self, store: Store) -> None:
        for run_id, queue, turn, owner in [
            ("b", "q", "2", None), ("a", "q", "2", None), ("first", "q", "1", None), ("owned", "q", "1", "me"), ("other", "r", "1", None),
        ]:  # fmt: skip
            keep(store, head(run_id, 1, status="queued", owner=owner)._replace(queue=queue, turn=turn, lane=run_id))
        keep(store, head("waits", 1, status="waiting", owner=None)._replace(queue="q", turn="1"))
        line = Query(statuses=["queued"], queue="q")
        assert listed(store, line) == ["first", "a", "b"]
        assert listed(store, line._replace(limit=1, offset=1)) == ["a"]
        assert listed(store, line._replace(behind=("1", "first"))) == listed(store, line._replace(behind=("1", "zzz"))) == ["a", "b"]
        assert listed(store, line._replace(behind=("2", "a"))) == ["b"]
        assert listed(store, line._replace(behind=("2", "b"))) == []
        assert listed(store, line._replace(not_lanes=["a", "none", "first"])) == ["b"]
        assert listed(store, line._replace(not_lanes=["first"], agent="agent", behind=("1", "zzz"), limit=1)) == ["a"]
        assert listed(store, line._replace(queue="r")) == ["other"]
        assert listed(store, line._replace(agent="other")) == []
        taken = head("first", 2, owner="me")._replace(queue="q", turn="1", lane="first")
        assert store.append([Append("first", 1, 1, [row(2)], taken)]) == [None]
        assert store.head("first") == taken
        assert listed(store, line) == ["a", "b"]

    def test_those_with_letters_are_listed_until_the_letters_are_taken(self, store: Store) -> None:
        for run_id, owner in [("c", None), ("a", None), ("b", None), ("owned", "me"), ("none", None)]:
            keep(store, head(run_id, 1, status="waiting", owner=owner))
        letters = [store.post(run_id, "k", b"", 1) for run_id in ("c", "a", "b", "owned", "a")]
        assert listed(store, Query(addressed=True)) == ["a", "b", "c"]
        assert listed(store, Query(addressed=True, limit=1, after="a")) == ["b"]
        assert listed(store, Query(addressed=True, statuses=["done"])) == []
        store.append([Append("b", 1, 1, [row(2)], head("b", 2, status="waiting", owner=None), [letters[2]])])
        assert listed(store, Query(addressed=True)) == ["a", "c"]

    # letters

    def test_letters_are_numbered_and_ordered(self, store: Store) -> None:
        numbers = [store.post(run_id, "cancel", run_id.encode(), 5) for run_id in ("a", "b", "a", "b")]
        assert numbers == sorted(set(numbers))
        found = store.letters(["b", "a"])
        assert [letter.letter_id for letter in found] == numbers
        assert found[0] == (numbers[0], "a", 5, "cancel", b"a")
        assert [letter.letter_id for letter in store.letters(["b"])] == [numbers[1], numbers[3]]
        assert store.letters(["c"]) == store.letters([]) == []

    def test_taking_removes_a_letter_with_the_append(self, store: Store) -> None:
        store.append([create("run")])
        first, second = (store.post("run", "k", b"", 1) for _ in range(2))
        assert store.append([onward("run", 1, takes=[first])]) == [None]
        assert [letter.letter_id for letter in store.letters(["run"])] == [second]

    def test_a_stale_append_takes_nothing(self, store: Store) -> None:
        store.append([create("run"), create("other")])
        letter = store.post("run", "k", b"", 1)
        answers = store.append([onward("run", 5, takes=[letter]), onward("other", 1)])
        assert answers == [Stale(head("run", 1)), None]
        assert [kept.letter_id for kept in store.letters(["run"])] == [letter]

    def test_a_letter_number_is_never_given_twice(self, store: Store) -> None:
        store.append([create("run")])
        first = store.post("run", "k", b"", 1)
        store.append([onward("run", 1, takes=[first])])
        assert store.post("run", "k", b"", 1) > first

    # owners

    def test_an_owner_beats_from_one(self, store: Store) -> None:
        assert store.pulse("me") is None
        store.enroll("me")
        assert store.pulse("me") == (1, False)
        store.renew("me")
        store.renew("me")
        assert store.pulse("me") == (3, False)

    def test_owners_beat_each_for_itself(self, store: Store) -> None:
        store.enroll("me")
        store.enroll("you")
        store.renew("you")
        assert (store.pulse("me"), store.pulse("you")) == ((1, False), (2, False))

    def test_a_retired_owner_is_forgotten(self, store: Store) -> None:
        store.enroll("me")
        store.retire("me")
        assert store.pulse("me") is None
        store.retire("me")

    def test_renewing_does_not_bring_a_retired_owner_back(self, store: Store) -> None:
        store.enroll("me")
        store.retire("me")
        store.renew("me")
        assert store.pulse("me") is None

    @pytest.mark.parametrize("owner", ["..", "a/b", "süß 🪝", "%2F", "x" * 60])
    def test_an_owner_may_have_any_name(self, store: Store, owner: str) -> None:
        store.enroll(owner)
        assert store.pulse(owner) == (1, False)
        store.retire(owner)

    def test_walking_by_id_meets_each_run_once_however_they_move(self, store: Store) -> None:
        store.append([create(name) for name in ("c", "a", "e", "b", "d")])
        met, after = [], ""
        while page := store.heads(Query(limit=2, after=after)):
            met += [found.run_id for found in page]
            after = page[-1].run_id
            store.append([onward(page[0].run_id, 1)])
        assert met == ["a", "b", "c", "d", "e"]

    # repairs, where the store can do them

    def test_what_is_not_good_is_moved_aside_and_kept(self, store: Store) -> None:
        mended = repaired(store, "run", rows=4, good=2)
        assert mended.set_aside(repair("run", rows=4, good=2)) is True
        moved = head("run", 3, epoch=2, owner=None)
        assert store.load("run") == (moved, [row(1), row(2), row(3, epoch=2)])
        assert [one.fields for one in mended.aside("run") if one.what == "row"] == [tuple(row(3)), tuple(row(4))]
        assert [one.fields for one in mended.aside("run") if one.what == "head"] == [tuple(head("run", 4))]
        assert {(one.run_id, one.at_us, one.by, one.why) for one in mended.aside("run")} == {("run", 77, "ann", "because")}
        assert store.append([Append("run", 2, 3, [row(4, epoch=2)], head("run", 4, epoch=2))]) == [None]

    def test_a_repair_leaves_other_runs_alone(self, store: Store) -> None:
        store.enroll("me")
        store.append([create("other", rows=5)])
        mended = repaired(store, "run", rows=4, good=2)
        assert mended.set_aside(repair("run", rows=4, good=2)) is True
        assert store.load("other") == (head("other", 5), [row(n) for n in range(1, 6)])
        assert mended.aside("other") == []
        assert store.check() == []

    def test_a_repair_of_a_run_that_moved_changes_nothing(self, store: Store) -> None:
        mended = repaired(store, "run", rows=4, good=2)
        store.append([onward("run", 4)])
        assert mended.set_aside(repair("run", rows=4, good=2)) is False
        assert store.load("run") == (head("run", 5), [row(n) for n in range(1, 6)])
        assert mended.aside("run") == []

    def test_a_repair_shuts_out_who_wrote_before(self, store: Store) -> None:
        mended = repaired(store, "run", rows=4, good=2)
        assert mended.set_aside(repair("run", rows=4, good=2)) is True
        assert store.append([onward("run", 4)]) == [Stale(head("run", 3, epoch=2, owner=None))]

    def test_repairs_add_up(self, store: Store) -> None:
        mended = repaired(store, "run", rows=4, good=2)
        first, again = repair("run", rows=4, good=2), repair("run", rows=3, good=1)
        assert mended.set_aside(first) is True
        assert mended.found("run") == (first.head, [row(1), row(2), row(3, epoch=2)])
        assert mended.set_aside(again._replace(found=first.head)) is True
        assert [one.fields[0] for one in mended.aside("run") if one.what == "row"] == [3, 4, 2, 3]

    # life

    def test_reopening_sees_everything(self, store: Store, tmp_path: Path) -> None:
        store.append([create("run", rows=2)])
        letter = store.post("run", "k", b"b", 3)
        store.enroll("me")
        store.close()
        again = self.open(tmp_path)
        if not self.lasting:
            assert again.load("run") is None
            return
        assert again.load("run") == (head("run", 2), [row(1), row(2)])
        assert [kept.letter_id for kept in again.letters(["run"])] == [letter]
        assert again.pulse("me") is not None
        assert again.append([onward("run", 2)]) == [None]
        again.close()

    def test_a_sound_store_has_nothing_to_report(self, store: Store) -> None:
        store.enroll("me")
        store.append([create("a"), create("b", rows=3)])
        store.append([onward("a", 1)])
        store.post("a", "cancel", b"", 1)
        assert store.check() == []

    def test_closing_twice_is_harmless(self, store: Store) -> None:
        store.append([create("run")])
        store.close()
        store.close()

    # strain

    def test_many_threads_lose_and_double_nothing(self, store: Store) -> None:
        runs = ["a", "b", "c"]
        store.append([create(run_id) for run_id in runs])
        with ThreadPoolExecutor(WRITERS) as pool:
            said = list(pool.map(lambda number: _write_from_a_thread(store, runs[number % 3], number), range(WRITERS * WRITES)))
        for run_id in runs:
            loaded = store.load(run_id)
            assert loaded is not None
            assert [one.seq for one in loaded[1]] == list(range(1, loaded[0].seq + 1))
            wrote = [one for one in said if one[0] == run_id]
            assert sorted(wrote) == sorted((run_id, one.seq, one.body) for one in loaded[1][1:])

    def test_a_load_sees_one_moment(self, store: Store) -> None:
        store.append([create("run")])
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(lambda: [store.append([onward("run", seq)]) for seq in range(1, 60)])
            while True:
                last = writing.done()
                loaded = store.load("run")
                assert loaded is not None
                assert loaded[0].seq == len(loaded[1]) == loaded[1][-1].seq
                if last:
                    break
        assert writing.result() == [[None]] * 59

    @examples
    @given(run_id=Words, step_id=Words, body=Bytes, value=st.none() | Bytes, note=Words)
    def test_any_text_and_bytes_come_back(
        self, store: Store, *, run_id: str, step_id: str, body: bytes, value: bytes | None, note: str
    ) -> None:
        kept = store.head(run_id)
        epoch, seq = (kept.epoch, kept.seq) if kept else (0, 0)
        rows = [row(seq + 1, body=b"\0" + body, value=value, args=body)._replace(step_id=step_id, kind=note)]
        moved = head(run_id, seq + 1)._replace(note=note, agent=step_id, digest=body, owner=note)
        assert store.append([Append(run_id, epoch, seq, rows, moved)]) == [None]
        loaded = store.load(run_id)
        assert loaded is not None
        assert (loaded[0], loaded[1][seq:]) == (moved, rows)

    @examples
    @given(run_id=Words, kind=Words, body=Bytes)
    def test_any_letter_comes_back(self, store: Store, *, run_id: str, kind: str, body: bytes) -> None:
        letter = store.post(run_id, kind, b"\0" + body, 1)
        assert store.letters([run_id])[-1] == (letter, run_id, 1, kind, b"\0" + body)

    def test_a_big_value_comes_back(self, store: Store) -> None:
        big = bytes(range(256)) * (BIG // 256)
        rows = [row(1, value=big, args=big[::-1]), row(2)]
        assert store.append([Append("run", 0, 0, rows, head("run", 2))]) == [None]
        loaded = store.load("run")
        assert loaded is not None
        assert loaded[1] == rows


def _write_from_a_thread(store: Store, run_id: str, number: int) -> tuple[str, int, bytes]:
    """Append one row, again from the head that stands there whenever another thread was first; say what went in."""
    body = b"%d" % number
    now = store.head(run_id)
    for _ in range(TRIES):
        assert now is not None
        one = Append(run_id, 1, now.seq, [row(now.seq + 1, body=body)], head(run_id, now.seq + 1))
        (stale,) = store.append([one])
        if stale is None:
            return run_id, now.seq + 1, body
        assert stale.head is not None
        assert stale.head.seq > now.seq
        now = stale.head
    raise AssertionError(f"thread {number} never got in")
