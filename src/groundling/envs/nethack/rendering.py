"""Rendering windows of codes on a learner's device: the same bytes as `groundling.envs.nethack.glyphs.render`."""

import numpy as np
import torch
from torch import Tensor, nn

from groundling.envs.nethack.glyphs import CELL, glyph_table
from groundling.envs.nethack.observation import COLOURS


class GlyphRenderer(nn.Module):
    """Draws batches of windows by look-up, without parameters; its table is not saved in checkpoints.

    A row of a cell's pixels is 18 bytes, channels last, copied as 9 numbers of 2 bytes.
    """

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        rows = np.ascontiguousarray(glyph_table().transpose(0, 1, 3, 4, 2))  # (256, 16, 6, 6, 3)
        table = torch.from_numpy(rows.reshape(256 * COLOURS, -1)).view(torch.int16)
        self.register_buffer("table", table, persistent=False)

    def forward(self, chars: Tensor, colours: Tensor) -> Tensor:
        """Draw codes.

        Args:
            chars: Uint8 ``(..., rows, columns)``.
            colours: Uint8 of the same shape, below 16.

        Returns:
            Uint8 ``(..., 3, 6 rows, 6 columns)``; the channels are last in memory, which convolutions prefer.
        """
        *batch, rows, columns = chars.shape
        codes = chars.reshape(-1).int() * COLOURS + colours.reshape(-1)
        cells = self.table.index_select(0, codes).view(-1, rows, columns, CELL, CELL * 3 // 2)
        pixels = cells.transpose(2, 3).reshape(*batch, rows * CELL, columns * CELL * 3 // 2).view(torch.uint8)
        return pixels.view(*batch, rows * CELL, columns * CELL, 3).movedim(-1, -3)
