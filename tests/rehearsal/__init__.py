"""The rehearsal of an accelerator: a device that uses CPU memory, and all code paths of runs on a GPU."""
