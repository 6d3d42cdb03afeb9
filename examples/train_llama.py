"""rtk run plan.json --script train_llama.py      everything on this machine; kill any worker
torchrun --nproc-per-node 4 train_llama.py       the same, where RTK_PLAN names the plan"""

import torch
import torch.nn.functional as F

from rtk.train import Evaluation, HuggingFace, Tokens, Training, cosine


def loss(logits, targets):  # (sum, count): rtk divides by the count of the whole iteration
    total = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-100, reduction="sum")
    return total, (targets != -100).sum()


training = Training(
    model=HuggingFace("tiny-llama"),
    loss=loss,
    data=Tokens("train.bin", dtype="uint16", sequence_length=64),
    microbatch_size=8,
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1),
    schedule=cosine(warmup=10, steps=200, final=0.1),
    clip_norm=1.0,
    evaluate=Evaluation(Tokens("valid.bin", dtype="uint16", sequence_length=64), every=50, microbatches=8),
)


@training.on("evaluation", "failure", "join")
def tell(event):
    print(event)


if __name__ == "__main__":
    training.run()
