"""Whether a PostgreSQL store is whole: that heads, journals, letters and owners agree.

The pages are the server's business. The rows of a run are not compared with each other here: they carry a chain of digests of their own.
"""

from __future__ import annotations

from holdfast.stores._postgres_line import Connection
from holdfast.stores._postgres_text import plain

ASTRAY = """
    SELECT format('run %s has %s records in its journal but no head', run_id, count(*))
    FROM journal WHERE NOT EXISTS (SELECT 1 FROM runs WHERE run_id = journal.run_id) GROUP BY run_id
    UNION ALL
    SELECT format('the head of run %s stands at %s, its journal ends at %s', run_id, runs.seq, coalesce(ended, 0))
    FROM runs LEFT JOIN (SELECT run_id, max(seq) AS ended FROM journal GROUP BY run_id) AS journals USING (run_id)
    WHERE runs.seq <> coalesce(ended, 0)
    UNION ALL
    SELECT format('run %s has %s records, its journal ends at %s', run_id, held, ended)
    FROM runs JOIN (SELECT run_id, count(*) AS held, max(seq) AS ended FROM journal GROUP BY run_id) AS journals USING (run_id)
    WHERE held + dropped <> ended
    UNION ALL
    SELECT format('letter %s is addressed to run %s, which is not there', letter_id, run_id)
    FROM letters WHERE NOT EXISTS (SELECT 1 FROM runs WHERE run_id = letters.run_id)
    UNION ALL
    SELECT format('run %s belongs to %s, which is not enrolled', run_id, owner)
    FROM runs WHERE owner IS NOT NULL AND NOT EXISTS (SELECT 1 FROM owners WHERE owner = runs.owner)
"""


def findings(connection: Connection) -> list[str]:
    """What is wrong, in plain words."""
    with connection.transaction():
        connection.execute("SET LOCAL enable_seqscan = on; SET LOCAL enable_hashjoin = on", prepare=False)
        return [plain(found) for (found,) in connection.execute(ASTRAY.encode(), prepare=False)]
