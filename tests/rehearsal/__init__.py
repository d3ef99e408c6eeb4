"""The rehearsal of an accelerator: a device that holds CPU memory, and every path that a run on a GPU takes."""
