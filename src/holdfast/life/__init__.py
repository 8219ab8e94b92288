"""The life of a step: what it asks for as a generator of commands, the drivers that carry them out, and the commit."""
