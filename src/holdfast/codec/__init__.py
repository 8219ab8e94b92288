"""What goes to the store and comes back: typed values, arguments and their fingerprint, errors."""
