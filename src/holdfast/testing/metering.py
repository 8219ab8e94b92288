"""The part of the conformance suite for stores that many share: the promises of `holdfast.store.Metered`, `Roster` and `Holds` as tests."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.store import Append, Ceiling, Draft, Enrolled, Hold, Holds, Metered, Roster, Stale, Store
from holdfast.testing.sample import WRITERS, head, keep, row

FAR_US = 4_000_000_000_000_000
"""Later than any clock: from there on a meter moves by what is drawn alone."""


MOST = 3


def metered(store: Store) -> Metered:
    """The store, if it can share limits; one that cannot do that is none the worse for it."""
    if not isinstance(store, Metered):
        pytest.skip("this store shares no limits")
    return store


def holding(store: Store) -> Holds:
    """The store, if it keeps what is held back."""
    if not isinstance(store, Holds):
        pytest.skip("this store holds nothing back")
    return store


def resting(store: Store, run_id: str, *, lane: str = "lane", queue: str = "q") -> None:
    """A run that nobody owns."""
    keep(store, head(run_id, 1, status="queued", owner=None)._replace(queue=queue, lane=lane))


def claim(run_id: str, *ceilings: Ceiling, lane: str = "lane", queue: str = "q") -> Append:
    """The append that takes it."""
    taken = head(run_id, 2, epoch=2, owner=run_id)._replace(queue=queue, lane=lane)
    return Append(run_id, 1, 1, [row(2, epoch=2)], taken, ceilings=ceilings)


class MeteredConformance:
    """Mixed into `StoreConformance`."""

    lasting: bool

    def open(self, folder: Path) -> Store:
        """Open the store that lives in `folder`."""
        raise NotImplementedError

    @pytest.mark.parametrize(("field", "value"), [("queue", "q"), ("agent", "agent"), ("lane", "lane")])
    def test_no_more_runs_have_an_owner_than_a_ceiling_lets(self, store: Store, field: str, value: str) -> None:
        metered(store)
        for run_id in ("a", "b", "c"):
            resting(store, run_id)
        ceiling = Ceiling(field, value, 2)
        assert store.append([claim("a", ceiling)]) == store.append([claim("b", ceiling)]) == [None]
        assert store.append([claim("c", ceiling)]) == [Stale(store.head("c"), full=[ceiling])]
        assert store.load("c") == (store.head("c"), [row(1)])
        let_go = head("a", 3, epoch=2, status="waiting", owner=None)
        assert store.append([Append("a", 2, 2, [row(3, epoch=2)], let_go)]) == [None]
        assert store.append([claim("c", ceiling)]) == [None]

    def test_a_run_does_not_stand_in_its_own_way_and_others_are_not_counted(self, store: Store) -> None:
        metered(store)
        for run_id, lane in (("a", "one"), ("b", "two")):
            resting(store, run_id, lane=lane)
        one, two = Ceiling("lane", "one", 1), Ceiling("lane", "two", 1)
        assert store.append([claim("a", one, lane="one"), claim("b", two, lane="two")]) == [None, None]
        again = head("a", 3, epoch=3, owner="other")._replace(lane="one")
        assert store.append([Append("a", 2, 2, [row(3, epoch=3)], again, ceilings=[one])]) == [None]

    @pytest.mark.parametrize(("field", "value"), [("queue", "q"), ("agent", "agent"), ("lane", "lane")])
    def test_a_run_inside_another_one_is_not_counted(self, store: Store, field: str, value: str) -> None:
        metered(store)
        child = head("a.1", 1)._replace(queue="q", lane="lane", tags='{"a": "b", "child_of": "a"}')
        alike = head("b", 1)._replace(queue="q", lane="lane", tags='{"about": "child_of"}')
        ceiling = Ceiling(field, value, 1)
        resting(store, "a")
        keep(store, child)
        assert store.append([claim("a", ceiling)]) == [None]
        keep(store, alike)
        again = claim("a", ceiling)._replace(epoch=2, seq=2, rows=[row(3, epoch=3)], head=head("a", 3, epoch=3)._replace(queue="q"))
        assert store.append([again]) == [Stale(store.head("a"), full=[ceiling])]

    def test_who_is_stale_is_told_that_and_not_that_there_is_no_room(self, store: Store) -> None:
        metered(store)
        resting(store, "a")
        assert store.append([claim("a")]) == [None]
        late = claim("a", Ceiling("lane", "lane", 0))
        assert store.append([late]) == [Stale(store.head("a"))]

    def test_many_who_come_at_once_do_not_exceed_it_either(self, store: Store) -> None:
        metered(store)
        ceiling = Ceiling("lane", "lane", MOST)
        names = [f"run{number}" for number in range(4 * WRITERS)]
        for name in names:
            resting(store, name)
        together = threading.Barrier(WRITERS)

        def take(name: str) -> bool:
            together.wait()
            return store.append([claim(name, ceiling)]) == [None]

        with ThreadPoolExecutor(WRITERS) as pool:
            assert sum(pool.map(take, names)) == MOST
        assert sum(store.head(name).owner is not None for name in names) == MOST  # type: ignore[union-attr]

    def test_several_in_one_batch_are_counted_one_after_the_other(self, store: Store) -> None:
        metered(store)
        ceiling = Ceiling("queue", "q", 1)
        for run_id in ("a", "b"):
            resting(store, run_id)
        assert store.append([claim("a", ceiling), claim("b", ceiling)]) == [None, Stale(store.head("b"), full=[ceiling])]

    def test_those_who_are_enrolled_are_told_with_what_they_say_of_themselves(self, store: Store) -> None:
        if not isinstance(store, Roster):
            pytest.skip("this store does not tell who works on it")
        for owner in ("b", "a"):
            store.enroll(owner)
        store.introduce("a", b"first")
        store.introduce("a", b"host 1")
        store.renew("b")
        assert store.owners() == [Enrolled("a", 1, b"host 1"), Enrolled("b", 2, b"")]
        store.retire("a")
        assert store.owners() == [Enrolled("b", 2, b"")]

    def test_what_is_held_back_stays_so_until_it_is_released_for_whoever_opens_the_store(self, store: Store, tmp_path: Path) -> None:
        holds = holding(store)
        for what, about in (("queue b", b"first"), ("fleet", b"all\x00of it"), ("queue b", b"again"), ("queue a\0", b"")):
            holds.hold_back(what, about)
        expected = [Hold("fleet", b"all\x00of it"), Hold("queue a\0", b""), Hold("queue b", b"again")]
        assert holds.held_back() == expected
        if self.lasting:
            with closing(self.open(tmp_path)) as again:
                assert holding(again).held_back() == expected
        assert holds.release("queue a\0")
        assert not holds.release("queue a\0")
        assert not holds.release("queue")
        assert holds.held_back() == [expected[0], expected[2]]

    def test_what_another_holds_back_is_seen_at_once(self, store: Store, tmp_path: Path) -> None:
        if not self.lasting:
            pytest.skip("nobody else has this store open")
        with closing(self.open(tmp_path)) as other:
            here, there = holding(store), holding(other)
            there.hold_back("queue a", b"x")
            assert here.held_back() == [Hold("queue a", b"x")]
            assert here.release("queue a")
            assert there.held_back() == []

    def test_each_further_run_of_a_lane_comes_later_while_one_of_it_is_in_line(self, store: Store) -> None:
        meter = metered(store)
        first = meter.turn("q", "lane", step_us=FAR_US, at_us=5)
        assert meter.turn("q", "lane", step_us=10, at_us=5) < first + FAR_US
        resting(store, "in line")
        second = meter.turn("q", "lane", step_us=FAR_US, at_us=5)
        assert [meter.turn("q", "lane", step_us=10, at_us=5) for _ in range(2)] == [second + FAR_US, second + FAR_US + 10]
        for queue, lane in (("q", "other"), ("other", "lane")):
            meter.turn(queue, lane, step_us=FAR_US, at_us=5)
            assert meter.turn(queue, lane, step_us=10, at_us=5) < second + FAR_US

    def test_a_meter_is_moved_to_a_point_in_time_and_never_back_for_whoever_opens_the_store(self, store: Store, tmp_path: Path) -> None:
        meter = metered(store)
        assert [meter.stands("mark", at_us) for at_us in (70, 90)] == [70, 70]
        for to_us, expected in ((80, 80), (75, 80), (FAR_US, FAR_US)):
            meter.advance("mark", to_us)
            assert meter.stands("mark", 5) == expected
        meter.advance("another", 3)
        if self.lasting:
            with closing(self.open(tmp_path)) as again:
                assert [metered(again).stands(name, 0) for name in ("mark", "another")] == [FAR_US, 3]

    def test_who_draws_more_than_there_is_now_is_told_when_there_is_and_nobody_else_is_let_in_before(self, store: Store) -> None:
        meter, whole, little = metered(store), Draft("m", FAR_US, FAR_US), Draft("m", 20, FAR_US)
        assert meter.draw([whole], at_us=5)[1:] == (0, ())
        stood_us = meter.stands("m", 0)
        then = meter.draw([whole._replace(step_us=FAR_US // 2)], at_us=5)
        assert then[::2] == (stood_us - FAR_US // 2, ())
        assert 0 < then.wait_us <= FAR_US // 2
        assert meter.draw([little], at_us=5)[::2] == (then.at_us, (little,))
        assert meter.stands("m", 0) == stood_us + FAR_US // 2

    def test_what_is_not_used_is_given_back_unless_somebody_has_drawn_since(self, store: Store) -> None:
        meter, whole = metered(store), Draft("m\0", FAR_US, FAR_US)
        meter.draw([whole], at_us=5)
        stood_us = meter.stands("m\0", 0)
        then = meter.draw([whole], at_us=5)
        meter.give_back(whole, then.at_us)
        meter.give_back(whole, then.at_us)
        assert meter.stands("m\0", 0) == stood_us
        then = meter.draw([whole], at_us=5)
        meter.advance("m\0", stood_us + FAR_US + 1)
        meter.give_back(whole, then.at_us)
        assert meter.stands("m\0", 0) == stood_us + FAR_US + 1

    def test_of_several_meters_the_one_that_takes_longest_is_drawn_from_first_and_none_where_another_waits(self, store: Store) -> None:
        meter, slow, quick = metered(store), Draft("slow", FAR_US, FAR_US), Draft("quick\0", FAR_US // 8, FAR_US)
        first = meter.draw([slow, quick], at_us=5)
        assert (first.wait_us, first.left) == (0, ())
        assert meter.draw([quick, slow], at_us=5)[::2] == (first.at_us + FAR_US, (quick,))
        assert meter.draw([quick, slow], at_us=5)[::2] == (first.at_us + FAR_US, (quick, slow))
        assert [meter.stands(name, 0) for name in ("slow", "quick\0")] == [first.at_us + 2 * FAR_US, first.at_us + FAR_US // 8]
