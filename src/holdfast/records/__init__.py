"""The facts of a run: their kinds, their chain, and what follows from them; nearly all of it pure."""
