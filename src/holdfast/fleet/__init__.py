"""Workers: which runs they take, heed and hand over, and what schedules and queues leave to them."""
