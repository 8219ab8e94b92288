"""Nobody changes a fact."""

from __future__ import annotations

from holdfast.records.kinds import StepDone

done = StepDone(name="look", fingerprint="1:0")
done.attempt = 2  # E: is read-only
StepDone(name="look", fingerprint="1:0", attempts=2)  # E: Unexpected keyword argument
StepDone(name="look")  # E: Missing named argument
