"""The opened store: `Holdfast` and its verbs, and what ties the other rooms together for it."""
