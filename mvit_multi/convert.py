"""Maps parameter names of other code bases to MViTv2's; ours are MultiTrain's.

Known formats: MultiTrain's files, PySlowFast's, torchvision's (`mvit_v2_s`), and our own. Those of
MultiTrain and PySlowFast differ only in names of layers that the other network does not have, so
only the prefix of a wrapper is removed.
"""

import re
from collections.abc import Iterable
from typing import Optional

from utils.weights.parameter_names import ParameterNames

TORCHVISION = [
    (r"^conv_proj\.", "patch_embed.proj."),
    (r"^pos_encoding\.class_token$", "cls_token"),
    (r"^head\.1\.", "head.projection."),
    (r"\.pool_([qkv])\.pool\.", r".pool_\1."),
    (r"\.pool_([qkv])\.norm_act\.0\.", r".norm_\1."),
    (r"\.attn\.project\.0\.", ".attn.proj."),
    (r"\.project\.", ".proj."),
    (r"\.mlp\.0\.", ".mlp.fc1."),
    (r"\.mlp\.3\.", ".mlp.fc2."),
]


class MViTNames(ParameterNames):
    """Rules for MViTv2."""

    classifier = r"^(head|expander)\."  # heads and expander of the data sets

    def detect_format(self, names: Iterable[str]) -> str:
        names = {self.canonical_name(name) for name in names}
        if "pos_encoding.class_token" in names:
            if "pos_encoding.spatial_pos" in names or "blocks.0.attn.rel_pos_t" not in names:
                raise ValueError("torchvision's MViT of version 1; here is MViTv2: take mvit_v2_s")
            return "torchvision"
        if "patch_embed.proj.weight" not in names or "blocks.0.attn.pool_q.weight" not in names:
            known = "MultiTrain's, PySlowFast's nor torchvision's"
            raise ValueError(f"the names are neither {known} MViTv2")
        return "slowfast" if "cls_token" in names else "multitrain"

    def canonical_name(self, name: str, source_format: str = "multitrain") -> Optional[str]:
        name = re.sub(r"^(module|model)\.", "", name)
        for pattern, replacement in TORCHVISION if source_format == "torchvision" else []:
            name = re.sub(pattern, replacement, name)
        return name

    def fit_shape(self, name: str, shape: tuple, target_shape: tuple) -> Optional[str]:
        """How an array of another shape can be used: `resize_rows`, `reshape` or None.

        A table of relative positions (distances, channels) is interpolated along the distances.
        torchvision's class token is a vector.
        """
        if name == "cls_token" and shape == target_shape[2:]:
            return "reshape"
        is_table = ".rel_pos_" in name and len(shape) == 2 and shape[1] == target_shape[1]
        return "resize_rows" if is_table and shape[0] else None
