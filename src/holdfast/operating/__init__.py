"""What operators see and say: views of runs, words to them, going back, repair, pruning, the doctor."""
