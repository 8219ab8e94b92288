"""One run from its claim to its end: who owns it, how its code is driven, how what happened is recorded."""
