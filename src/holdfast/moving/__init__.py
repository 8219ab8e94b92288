"""Runs that leave their store: moved, copied, archived, or adopted after somebody changed a file by hand."""
