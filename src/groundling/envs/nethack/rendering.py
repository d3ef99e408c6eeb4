"""Render NetHack's characters and colours as images, in NumPy or PyTorch. Env workers do not import this module."""

from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn

from groundling.envs.nethack.observation import COLOURS

CELL = 6  # side of a cell in pixels
FONT_SIZE = 9  # points, before characters are resized to `CELL` × `CELL` pixels

_RGB = (
    "3c3c82 aa0000 00aa00 aa5500 0000aa aa00aa 00aaaa aaaaaa 555555 ff5555 55ff55 ffff55 5555ff ff55ff 55ffff ffffff"
)
PALETTE = np.frombuffer(bytes.fromhex(_RGB), dtype=np.uint8).reshape(16, 3)
"""RGB values of a terminal's 16 colours. The first, NetHack's black, is lightened so that it is visible on black."""


@cache
def font(size: int) -> ImageFont.FreeTypeFont:
    """Load DejaVu Sans Mono, which ships with matplotlib."""
    import matplotlib

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSansMono.ttf"
    return ImageFont.truetype(str(path), size)


@cache
def glyph_table() -> np.ndarray:
    """Draw each character in each colour, as read-only uint8 ``(256, 16, 3, 6, 6)``."""
    face = font(FONT_SIZE)
    width, height = round(face.getlength("M")), sum(face.getmetrics())
    masks = np.zeros((256, CELL, CELL), dtype=np.float32)
    for code in range(33, 256):
        cell = Image.new("L", (width, height))
        ImageDraw.Draw(cell).text((0, 0), bytes([code]).decode("cp437"), fill=255, font=face)
        masks[code] = np.asarray(cell.resize((CELL, CELL), Image.Resampling.BOX), dtype=np.float32) / 255
    table = masks[:, None, None] * PALETTE[None, :, :, None, None].astype(np.float32)
    table = table.round().astype(np.uint8)  # (256, 16, 3, 6, 6)
    table.setflags(write=False)
    return table


def render(chars: np.ndarray, colours: np.ndarray) -> np.ndarray:
    """Draw character and colour codes, uint8 ``(..., rows, columns)``, as uint8 ``(..., 3, 6·rows, 6·columns)``."""
    *batch, rows, columns = chars.shape
    cells = glyph_table()[chars, colours]  # (..., rows, columns, 3, 6, 6)
    n = len(batch)
    order = (*range(n), n + 2, n, n + 3, n + 1, n + 4)
    return cells.transpose(order).reshape(*batch, 3, rows * CELL, columns * CELL)


class GlyphRenderer(nn.Module):
    """Draws windows as `render` does, on any device; each pixel row of a cell (18 bytes) is copied as 9 int16s."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        rows = np.ascontiguousarray(glyph_table().transpose(0, 1, 3, 4, 2))  # (256, 16, 6, 6, 3)
        table = torch.from_numpy(rows.reshape(256 * COLOURS, -1)).view(torch.int16)
        self.register_buffer("table", table, persistent=False)

    def forward(self, chars: Tensor, colours: Tensor) -> Tensor:
        """Draw codes as `render` does; the result is in channels-last memory format."""
        *batch, rows, columns = chars.shape
        codes = chars.reshape(-1).int() * COLOURS + colours.reshape(-1)
        cells = self.table.index_select(0, codes).view(-1, rows, columns, CELL, CELL * 3 // 2)
        pixels = cells.transpose(2, 3).reshape(*batch, rows * CELL, columns * CELL * 3 // 2).view(torch.uint8)
        return pixels.view(*batch, rows * CELL, columns * CELL, 3).movedim(-1, -3)
