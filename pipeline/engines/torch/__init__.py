"""The torch engine: one process, CPU or one GPU."""
