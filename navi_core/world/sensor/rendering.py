"""A panorama as an image: near is warm and bright, far is cold and dark, what misses is black."""

import numpy as np
import numpy.typing as npt

_STOPS = np.array([0.0, 0.15, 0.3, 0.5, 0.75, 1.0])
_COLOURS = np.array(
    [[255, 250, 220], [255, 196, 92], [226, 92, 76], [142, 46, 120], [56, 34, 112], [14, 14, 44]], np.float64
)
_WIDTH = 512


def panorama_image(observation: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Draw an observation as it is seen: forward in the middle, left on the left, up at the top.

    Args:
        observation: (3, Az, El) normalised depth, semantic id, valid mask.

    Returns:
        (height, width, 3) RGB, each bin a square of pixels, at least 512 wide.
    """
    depth, valid = observation[0], observation[2] > 0.5
    colour = np.stack([np.interp(depth, _STOPS, _COLOURS[:, i]) for i in range(3)], axis=-1)
    image = np.where(valid[..., None], colour, 0.0).round().astype(np.uint8)
    image = np.roll(image, image.shape[0] // 2, axis=0).transpose(1, 0, 2)
    size = max(1, -(-_WIDTH // image.shape[1]))
    return np.ascontiguousarray(image.repeat(size, axis=0).repeat(size, axis=1))
