"""The picture of a window of codes on a learner's device: the same bytes as `groundling.envs.nethack.glyphs.render`."""

import numpy as np
import torch
from torch import Tensor, nn

from groundling.envs.nethack.glyphs import CELL, glyph_table
from groundling.envs.nethack.observation import COLOURS


class GlyphRenderer(nn.Module):
    """Draws batches of windows by look-up; has no parameters, and its table is in no checkpoint.

    A row of a cell's pixels is 6 bytes, moved as 3 numbers of 2 bytes.
    """

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        rows = np.ascontiguousarray(glyph_table()).view(np.int16)  # (256, 16, 3, 6, 3)
        table = torch.from_numpy(rows.reshape(256 * COLOURS, -1).copy())
        self.register_buffer("table", table, persistent=False)

    def forward(self, chars: Tensor, colours: Tensor) -> Tensor:
        """Draw codes.

        Args:
            chars: uint8 ``(..., rows, columns)``.
            colours: uint8 of the same shape, below 16.

        Returns:
            uint8 ``(..., 3, 6 rows, 6 columns)``.
        """
        *batch, rows, columns = chars.shape
        codes = chars.reshape(-1).int() * COLOURS + colours.reshape(-1)
        cells = self.table.index_select(0, codes).view(-1, rows, columns, 3, CELL, CELL // 2)
        pixels = cells.permute(0, 3, 1, 4, 2, 5).reshape(-1, 3, rows * CELL, columns * CELL // 2)
        return pixels.view(torch.uint8).view(*batch, 3, rows * CELL, columns * CELL)
