"""What a GPU that is here is called in our table."""

import torch

# The names that drivers give, and those of our table (schemas/gpus.py); the first that fits counts.
NAMES = (
    ("H200", "h200-sxm"),
    ("H100 PCIe", "h100-pcie"),
    ("H100", "h100-sxm"),
    ("H800", "h800-sxm"),
    ("A100-SXM4-40GB", "a100-sxm-40gb"),
    ("A100-SXM", "a100-sxm"),
    ("A100", "a100-pcie"),
    ("A40", "a40"),
    ("A10G", "a10g"),
    ("L40S", "l40s"),
    ("L4", "l4"),
    ("V100", "v100-sxm"),
    ("T4", "t4"),
    ("4090", "rtx-4090"),
    ("B200", "b200"),
    ("MI300X", "mi300x"),
)


def known_name(device: torch.device) -> str:
    """Its name in schemas/gpus.py; "cpu" of a CPU."""
    if device.type == "cpu":
        return "cpu"
    name = torch.cuda.get_device_name(device)
    found = next((ours for theirs, ours in NAMES if theirs in name), None)
    if found is None:
        raise SystemExit(f"error: nothing is known of {name}; add it to NAMES and to schemas/gpus.py")
    return found
