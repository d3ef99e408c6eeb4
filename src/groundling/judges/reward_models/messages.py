"""The content ids of arrays of NetHack messages."""

import numpy as np
from numpy.typing import NDArray

from groundling.envs.nethack.observation import MESSAGE_LENGTH, message_id


def message_ids(messages: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The id of each message's content, `groundling.envs.nethack.observation.message_id`.

    Args:
        messages: uint8 (..., 256).

    Returns:
        int64 (...).
    """
    flat = np.ascontiguousarray(messages).reshape(-1, MESSAGE_LENGTH)
    contents = flat.view(f"S{MESSAGE_LENGTH}")[:, 0].tolist()  # without the NULs at their ends
    return np.fromiter(map(message_id, contents), np.int64, len(contents)).reshape(messages.shape[:-1])
