"""A cluster in the memory of one process, and hosts that run on it under one seed and one clock."""
