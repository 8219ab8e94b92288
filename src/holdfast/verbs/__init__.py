"""What agent code may say: the decorators, branches, waits, time-outs, and words to the run it is in."""
