"""A profile of a model like GPT-3 6.7B on GPUs like the A40: computed, not measured, for plans at the paper's size.

    python benchmarks/gpt3.py gpt3.json
    python benchmarks/gpt3.py --keep-activations gpt3-kept.json

The model and its batches are those of "Oobleck", Table 1: 32 blocks, sequences of 2048, micro-batches of 2. Layer 0 is
the embedding and the first block, layer 31 the last block and the head; the head has a matrix of its own, which makes
6.86e9 parameters. With s tokens a sequence, b sequences a micro-batch, h = 4096, a = 32 heads, V = 50,257 words and
tensor parallelism d:

* FLOPs of a forward pass: 2 b s for each parameter of a matrix (12 h² a block, h V the head), and 4 b s² h a block for
  attention. A GPU does 40 % of the A40's 149.7e12 bf16 FLOPs a second, and 1/d of a layer's.
* Tensor parallelism all-reduces a block's outputs (2 b s h bytes) twice forward and twice backward, as a ring within
  the node: each time (d - 1) / d · 2 · 2 b s h bytes over the network, and 2 (d - 1) latencies. So does the embedding
  once forward, and the head once backward.
* F = FLOPs / rate + all-reduces, I = the same, W = FLOPs / rate. Attention has no weights, but its share (8 %) is not
  taken off W.
* Bytes of a parameter: 2 (bf16) and 14 of state: gradient (bf16, 2), master weight and AdamW's moments (fp32, 12).
  AdamW reads and writes 28 bytes a parameter at 80 % of 696e9 bytes/s, of 1/d of the parameters.
* With activation checkpointing, as in the paper, a layer keeps its input (2 b s h bytes) until its gradients are
  computed, in one go, as 1F1B does: W needs it, too. I takes F longer, which is computed again. What is there for one
  layer at a time only, a block's activations and the logits (6 b s V = 1.2e9 bytes), is no part of the format: a GPU
  must have that much left.
* With `--keep-activations` a block keeps (34 + 5 a s / h) b s h bytes, attention's matrices among them, of which W
  needs the inputs of the four matrices, 14 b s h (Korthikanti et al., "Reducing Activation Recomputation in Large
  Transformer Models", 2022, section 4.1); the head keeps 4 b s V bytes of logits.
* Each GPU has 1/d of that, as if tensor parallelism split all activations. It has 40e9 bytes.
* GPUs of a node talk over PCIe 4.0 (25e9 bytes/s, 10 µs), nodes over InfiniBand (200 Gb/s, 20 µs).
"""

import argparse

from rtk.schemas.documents import write_document
from rtk.schemas.profile import Connection, Device, Layer, LayerCost, Network, Profile

BLOCKS, HIDDEN, HEADS, WORDS = 32, 4096, 32, 50_257
SEQUENCE, MICROBATCH = 2048, 2
TOKENS = SEQUENCE * MICROBATCH
DEGREES = (1, 2, 4)

FLOPS_PER_S = 0.4 * 149.7e12
MEMORY_BYTES, MEMORY_BYTES_PER_S = 40e9, 0.8 * 696e9
PARAMETER_BYTES, STATE_BYTES, STEP_BYTES = 2, 14, 28
NETWORK = Network(intra_node=Connection(10e-6, 25e9), inter_node=Connection(20e-6, 25e9))

# Two matrices in and out of attention (4 h² together), two of the perceptron (8 h²); biases and norms beside them.
BLOCK_MATRICES, BLOCK_VECTORS = 12 * HIDDEN**2, 13 * HIDDEN
EMBEDDING, HEAD = (WORDS + SEQUENCE) * HIDDEN, WORDS * HIDDEN
ATTENTION_FLOPS = 4 * MICROBATCH * SEQUENCE**2 * HIDDEN
OUTPUT_BYTES = 2 * TOKENS * HIDDEN
KEPT_BYTES, KEPT_FOR_W_BYTES = (34 + 5 * HEADS * SEQUENCE // HIDDEN) * TOKENS * HIDDEN, 14 * TOKENS * HIDDEN
LOGITS_BYTES = 4 * TOKENS * WORDS


def profile(checkpointing: bool) -> Profile:
    """The whole model: 32 layers, whose activations are computed again or kept."""
    layers = [block(index, checkpointing) for index in range(BLOCKS)]
    model = {"name": "gpt3-6.7b-like", "blocks": BLOCKS, "hidden": HIDDEN, "words": WORDS}
    return Profile(
        tuple(layers),
        model={**model, "checkpointing": checkpointing},
        origin="analytic",
        device=Device("A40-like, 40 GB", MEMORY_BYTES),
        microbatch_size=MICROBATCH,
        sequence_length=SEQUENCE,
        network=NETWORK,
    )


def block(index: int, checkpointing: bool) -> Layer:
    """A block, with the embedding if it is the first, with the head if it is the last."""
    first, last = index == 0, index == BLOCKS - 1
    multiplied = BLOCK_MATRICES + (HEAD if last else 0)
    parameters = multiplied + BLOCK_VECTORS + (EMBEDDING if first else 0)
    flops = 2 * TOKENS * multiplied + ATTENTION_FLOPS
    name = "embedding, block" if first else "block, head" if last else "block"
    kept_bytes = KEPT_BYTES + (LOGITS_BYTES if last else 0)
    return Layer(
        tuple(cost(flops, parameters, (2 + first, 2 + last), degree, checkpointing) for degree in DEGREES),
        name=f"{name} {index}",
        parameter_bytes=PARAMETER_BYTES * parameters,
        state_bytes=STATE_BYTES * parameters,
        activation_bytes=OUTPUT_BYTES if checkpointing else kept_bytes,
        weight_stash_bytes=OUTPUT_BYTES if checkpointing else KEPT_FOR_W_BYTES,
        output_bytes=0 if last else OUTPUT_BYTES,
    )


def cost(flops: int, parameters: int, allreduces: tuple[int, int], degree: int, checkpointing: bool) -> LayerCost:
    """Times on so many GPUs, with so many all-reduces forward and backward."""
    computing_s = flops / FLOPS_PER_S / degree
    forward_s, backward_s = (computing_s + count * allreduce_s(degree) for count in allreduces)
    return LayerCost(
        forward_s=forward_s,
        backward_input_s=backward_s + (forward_s if checkpointing else 0.0),
        backward_weight_s=computing_s,
        optimizer_s=STEP_BYTES * parameters / degree / MEMORY_BYTES_PER_S,
        tensor_parallel=degree,
    )


def allreduce_s(degree: int) -> float:
    """Of a block's outputs among so many GPUs of a node, as a ring."""
    path = NETWORK.intra_node
    if path is None or path.bandwidth_bytes_per_s is None:
        return 0.0
    sent_bytes = 2 * (degree - 1) / degree * OUTPUT_BYTES
    return 2 * (degree - 1) * path.latency_s + sent_bytes / path.bandwidth_bytes_per_s


def main() -> None:
    """Write the profile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep-activations", action="store_true", help="compute none of them again")
    parser.add_argument("output", metavar="OUT.json", help="the profile's file; `-` is standard output")
    arguments = parser.parse_args()
    write_document(arguments.output, profile(not arguments.keep_activations))


if __name__ == "__main__":
    main()
