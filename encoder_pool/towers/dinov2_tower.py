"""DINOv2, the shard's half: uint8 pixels -> normalised float32 -> stock transformers Dinov2Model.

The arithmetic of BitImageProcessorPil: rescale, round to float32, subtract the mean, divide by the
deviation. Bit-equal to it, as the tests show for every level. B images, H x W pixels.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from transformers import Dinov2Model

from encoder_pool.config import ModelConfig
from encoder_pool.towers.dinov2 import CropSize, ImageProcessorConfig
from encoder_pool.towers.loading import load_model


class Normalise(nn.Module):
    """(B, H, W, 3) uint8 -> (B, 3, H, W) float32."""

    levels: torch.Tensor
    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, processor: ImageProcessorConfig, device: str) -> None:
        super().__init__()
        # Tensors, not Python numbers: CUDA turns a division by a number into a product, one bit off.
        for name, value in {
            "levels": 1 / processor.rescale_factor,
            "mean": processor.image_mean,
            "std": processor.image_std,
        }.items():
            self.register_buffer(name, torch.tensor(value, dtype=torch.float32, device=device))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """The reference's pixel_values of resized and cropped images."""
        normalised = (pixels.to(torch.float32) / self.levels - self.mean) / self.std
        return normalised.permute(0, 3, 1, 2).contiguous()


class PixelEncoder(nn.Module):
    """(B, H, W, 3) uint8 -> (B, 1 + patches, hidden_size). Raises ValueError if the weights do not fit."""

    def __init__(
        self, checkpoint: Path, processor: ImageProcessorConfig, patches: int, model: ModelConfig
    ) -> None:
        super().__init__()
        self.normalise = Normalise(processor, model.device)
        self.model = load_model(Dinov2Model, checkpoint, model)
        _interpolate_positions_once(self.model, processor.crop_size, patches)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """The last hidden state of the images."""
        hidden: torch.Tensor = self.model(self.normalise(pixels)).last_hidden_state
        return hidden


def _interpolate_positions_once(model: Dinov2Model, crop: CropSize, patches: int) -> None:
    """Replace the position table by the one that the stock forward would interpolate from it every time.

    The stock forward takes a table of the image's own number of positions as it is, for square images.
    """
    if crop.height != crop.width:
        return
    embeddings = model.embeddings
    tokens = embeddings.cls_token.expand(1, 1 + patches, -1)
    positions = embeddings.interpolate_pos_encoding(tokens, crop.height, crop.width)
    embeddings.position_embeddings = nn.Parameter(positions.clone(), requires_grad=False)
