"""A batch of appends in one round trip, and the way back to its answers when the reply was lost.

The arguments are packed here, in the binary form in which PostgreSQL takes arrays: handing them over one by one took longer than the
flush.
"""

# ruff: noqa: S608 (the columns of a head stand in one place)

from __future__ import annotations

import json
import select
import struct
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import psycopg
from psycopg import pq

from holdfast.store import Append, Ceiling, Head, Repair, Row, Stale
from holdfast.stores._postgres_limits import reached
from holdfast.stores._postgres_line import Connection
from holdfast.stores._postgres_text import plain, sql_text

STATEMENT = Path(__file__).with_name("postgres_append.sql").read_bytes()
ONE_STATEMENT = Path(__file__).with_name("postgres_append_one.sql").read_bytes()
NAME, ONE_NAME = b"holdfast_append", b"holdfast_append_one"
FIELDS = ", ".join(Head._fields)
ROW_FIELDS = ", ".join(Row._fields)
HEADS = f"SELECT {FIELDS} FROM runs WHERE run_id = ANY(%b)"
LANDED = """
    SELECT nr FROM unnest(%b::text[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bytea[]) WITH ORDINALITY
    AS w (run_id, seq, epoch, at_us, digest, nr) JOIN journal USING (run_id, seq, epoch, at_us, digest)
"""
MISSING = """
    SELECT digest FROM unnest(%b::text[]) AS w (digest) WHERE NOT EXISTS (SELECT 1 FROM blobs WHERE digest = w.digest)
    AND NOT EXISTS (SELECT 1 FROM blob_refs WHERE run_id = %b AND digest = w.digest)
"""
REFER = "INSERT INTO blob_refs SELECT %b, unnest(%b::text[]) ON CONFLICT DO NOTHING"
BLOBS_STAY = "SELECT pg_advisory_xact_lock_shared(hashtextextended('holdfast blobs ' || current_schema(), 0))"
BLOBS_GO = "SELECT pg_advisory_xact_lock(hashtextextended('holdfast blobs ' || current_schema(), 0))"

TOLD = "CASE WHEN octet_length(run_id) < 4000 THEN run_id ELSE '' END"
"""What is told of a run to those who listen: its id, or nothing where that is longer than a notification may be."""

MOST_BYTES = 1000 * 1024 * 1024
"""A message to the server must be smaller than a gibibyte; it hangs up on larger ones without a word."""

TEXT, BIGINT, BYTEA, DOUBLE = 25, 20, 17, 701
BINARY, ONE_BINARY = [pq.Format.BINARY] * 33, [pq.Format.BINARY] * 28
ONE = struct.Struct(">iiiii")
NULL = b"\xff\xff\xff\xff"
LENGTH = struct.Struct(">i")
_bigint = struct.Struct(">q").pack
_double = struct.Struct(">d").pack


def get_ready(connection: Connection) -> None:
    """Let the server plan the statements, once per session."""
    for name, statement in ((NAME, STATEMENT), (ONE_NAME, ONE_STATEMENT)):
        _checked(connection.pgconn, connection.pgconn.prepare(name, statement))


def written(connection: Connection, batch: Sequence[Append]) -> list[Stale | None]:
    """Write the batch in one transaction; those that are refused come with the head that stands there."""
    if not any(one.refs or one.ceilings for one in batch):
        return _answers(connection, batch, _append(connection, batch))
    with connection.transaction():
        if any(one.refs for one in batch):
            connection.execute(BLOBS_STAY)
        missing = {one.run_id: _missing(connection, one) for one in batch if one.refs}
        full = reached(connection, batch)
        whole = [one for one in batch if not missing.get(one.run_id) and not full.get(one.run_id)]
        into = {whole[place].run_id for place in _append(connection, whole)} if whole else set()
        for one in whole:
            if one.refs and one.run_id in into:
                connection.execute(REFER, (sql_text(one.run_id), list(one.refs)))
        answers = _answers(connection, batch, [place for place, one in enumerate(batch) if one.run_id in into])
        lacks = [(missing.get(one.run_id, []), full.get(one.run_id, [])) for one in batch]
        return [_lacking(one, answer, *lacking) for one, answer, lacking in zip(batch, answers, lacks, strict=True)]


def landed(connection: Connection, batch: Sequence[Append]) -> list[Stale | None] | None:
    """What became of a batch whose reply was lost: its answers, or None where nothing of it was written."""
    last = [one.rows[-1] for one in batch]
    columns = [[sql_text(one.run_id) for one in batch], *([row[field] for row in last] for field in (0, 1, 2, 8))]
    into = [nr - 1 for (nr,) in connection.cursor(binary=True).execute(LANDED, columns)]
    return _answers(connection, batch, into) if into else None


def heads_of(connection: Connection, run_ids: Sequence[str]) -> dict[str, Head]:
    """The heads of these runs, by their ids."""
    found = connection.cursor(binary=True).execute(HEADS, ([sql_text(run_id) for run_id in run_ids],))
    heads = [head_of(row) for row in found]
    return {head.run_id: head for head in heads}


def head_of(row: Sequence[Any]) -> Head:
    """A head as it was given."""
    return Head._make(map(plain, row))


def row_of(row: Sequence[Any]) -> Row:
    """A row as it was given."""
    return Row._make(map(plain, row))


def tag(key: str, value: object) -> str:
    """One tag as `tagged` holds it."""
    return json.dumps([key, value])


@lru_cache(256)
def tagged(tags: str) -> str:
    """The tags of a head as an array in PostgreSQL's notation."""
    pairs = [tag(*pair) for pair in json.loads(tags).items()]
    return "{" + ",".join('"' + pair.replace("\\", "\\\\").replace('"', '\\"') + '"' for pair in pairs) + "}"


def _append(connection: Connection, batch: Sequence[Append]) -> list[int]:
    """Send the statement; gives the places of what went in."""
    pgconn = connection.pgconn
    if len(batch) == 1 and batch[0].seq and len(batch[0].rows) == 1 and not batch[0].takes and batch[0].head.owner is not None:
        result = _checked(pgconn, _executed(pgconn, ONE_NAME, _packed_one(batch[0]), ONE_BINARY))
        return [0] if result.command_tuples else []
    order = sorted(range(len(batch)), key=lambda place: batch[place].run_id)  # so that two who write do not lock each other out
    values = _packed([batch[place] for place in order])
    result = _checked(pgconn, _executed(pgconn, NAME, values, BINARY))
    return [order[int.from_bytes(result.get_value(line, 0) or b"", "big") - 1] for line in range(result.ntuples)]


def _executed(pgconn: pq.abc.PGconn, name: bytes, values: Sequence[bytes | None], formats: Sequence[int]) -> pq.abc.PGresult:
    """Send a prepared statement and wait for its result here, not inside libpq, so that Ctrl-C gets through to a server that hangs."""
    size = sum(len(value) for value in values if value is not None)
    if size > MOST_BYTES:
        raise psycopg.DataError(f"{size:,} bytes are more than PostgreSQL takes at once; nothing was written. Keep large data as artifacts")
    pgconn.send_query_prepared(name, values, formats, pq.Format.BINARY)
    ready = select.poll()
    ready.register(pgconn.socket, select.POLLIN | select.POLLOUT)
    while pgconn.flush():
        ready.poll()
        pgconn.consume_input()
    ready.modify(pgconn.socket, select.POLLIN)
    while pgconn.is_busy():
        ready.poll()
        pgconn.consume_input()
    result = pgconn.get_result()
    assert result is not None, "a statement has a result"
    while pgconn.get_result() is not None:
        pass
    return result


def _checked(pgconn: pq.abc.PGconn, result: pq.abc.PGresult) -> pq.abc.PGresult:
    if result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
        return result
    if pgconn.status == pq.ConnStatus.BAD:
        raise psycopg.OperationalError(pgconn.get_error_message())
    raise psycopg.errors.error_from_result(result)


def _packed_one(append: Append) -> list[bytes | None]:
    """The arguments of the statement for one row, in its order."""
    run_id, agent, status, owner, epoch, seq, digest, wake_us, created_us, updated_us, tags, usd, note, queue, turn, lane = append.head
    (row,) = append.rows
    return [
        _text(run_id), _bigint(append.epoch), _bigint(append.seq), _text(agent), _text(status), None if owner is None else _text(owner),
        _bigint(epoch), _bigint(seq), digest, None if wake_us is None else _bigint(wake_us), _bigint(created_us), _bigint(updated_us),
        _text(tags), _double(usd), _text(note), _text(queue), _text(turn), _text(lane),
        tagged(tags).encode(),
        _bigint(row.seq), _bigint(row.epoch), _bigint(row.at_us), _text(row.kind), _text(row.step_id), *row[5:],
    ]  # fmt: skip


def _text(text: str) -> bytes:
    return sql_text(text).encode()


def _packed(batch: Sequence[Append]) -> list[bytes]:
    """The arguments of the statement, in its order."""
    heads = [one.head for one in batch]
    rows = [(place, row) for place, one in enumerate(batch, 1) for row in one.rows]
    takes = [(place, letter_id) for place, one in enumerate(batch, 1) for letter_id in one.takes]
    run_ids, agents, statuses, owner, epochs, seqs, digests, wakes, created, updated, tags, usd, notes, *line = zip(*heads, strict=True)
    _, row_epochs, at_us, kinds, step_ids, bodies, values, args, row_digests = zip(*(row for _, row in rows), strict=True)
    return [
        _texts(run_ids), _bigints([one.epoch for one in batch]), _bigints([one.seq for one in batch]), _texts(agents), _texts(statuses),
        _texts(owner), _bigints(epochs), _bigints(seqs), _byteas(digests), _nullable(wakes), _bigints(created), _bigints(updated),
        _texts(tags), _doubles(usd), _texts(notes), *map(_texts, line),
        _texts([tagged(text) for text in tags]),
        _bigints([place for place, _ in rows]), _texts([run_ids[place - 1] for place, _ in rows]),
        _bigints([row.seq for _, row in rows]), _bigints(row_epochs), _bigints(at_us),
        _texts(kinds), _texts(step_ids), _byteas(bodies), _byteas(values), _byteas(args), _byteas(row_digests),
        _bigints([place for place, _ in takes]), _texts([run_ids[place - 1] for place, _ in takes]),
        _bigints([letter_id for _, letter_id in takes]),
    ]  # fmt: skip


def _bigints(numbers: Sequence[int]) -> bytes:
    count = len(numbers)
    if not count:
        return struct.pack(">iii", 0, 0, BIGINT)
    pairs = [part for number in numbers for part in (8, number)]
    return ONE.pack(1, 0, BIGINT, count, 1) + struct.pack(">" + "iq" * count, *pairs)


def _nullable(numbers: Sequence[int | None]) -> bytes:
    parts = [NULL if number is None else struct.pack(">iq", 8, number) for number in numbers]
    return ONE.pack(1, 1, BIGINT, len(parts), 1) + b"".join(parts)


def _doubles(numbers: Sequence[float]) -> bytes:
    return ONE.pack(1, 0, DOUBLE, len(numbers), 1) + b"".join([struct.pack(">id", 8, number) for number in numbers])


def _texts(texts: Sequence[str | None]) -> bytes:
    return _byteas([None if text is None else sql_text(text).encode() for text in texts], TEXT)


def _byteas(values: Sequence[bytes | None], oid: int = BYTEA) -> bytes:
    parts = [ONE.pack(1, 1, oid, len(values), 1)]
    for value in values:
        if value is None:
            parts.append(NULL)
        else:
            parts.append(LENGTH.pack(len(value)))
            parts.append(value)
    return b"".join(parts)


def _answers(connection: Connection, batch: Sequence[Append], into: Sequence[int]) -> list[Stale | None]:
    if len(into) == len(batch):
        return [None] * len(batch)
    found = heads_of(connection, [one.run_id for place, one in enumerate(batch) if place not in into])
    return [None if place in into else Stale(found.get(one.run_id)) for place, one in enumerate(batch)]


def referred(connection: Connection, one: Append | Repair) -> bool:
    """Refer to what it refers to, in a transaction in which `BLOBS_STAY`; False where some of that is not there."""
    if one.refs and _missing(connection, one):
        return False
    if one.refs:
        connection.execute(REFER, (sql_text(one.run_id), list(one.refs)))
    return True


def _missing(connection: Connection, one: Append | Repair) -> list[str]:
    return [digest for (digest,) in connection.execute(MISSING, (list(one.refs), sql_text(one.run_id)))]


def _lacking(one: Append, answer: Stale | None, missing: Sequence[str], full: Sequence[Ceiling]) -> Stale | None:
    """The answer to an append whose blobs are not there, or that has no room: said only where it would have gone in otherwise."""
    if answer is None:
        return answer
    head = answer.head
    believed = (one.epoch, one.seq) == ((head.epoch, head.seq) if head else (0, 0))
    return Stale(head, missing or (), full or ()) if believed else Stale(head)
