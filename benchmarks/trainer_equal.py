"""A hundred steps of rtk beside transformers' Trainer, on the same rows: losses, gradient norms, parameters.

`python benchmarks/trainer_equal.py [--steps 100] [-o FILE]`, in an environment that has accelerate beside rtk[hf].

A small Llama in float32 with accumulation over 8 micro-batches, of which unlike numbers of targets count, clipping at
1, a cosine schedule with a warm-up, and AdamW that decays matrices only. The Trainer runs it in one process; rtk as two
pipelines of two stages, once undisturbed, and once with a worker killed halfway, which joins again.
"""

import argparse
import os
import signal
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from rtk.benchmarks.common import write_result

SCRIPT = Path(__file__).parent / "llama_training.py"
LENGTH, VOCABULARY, LAYERS = 32, 256, 4
FOLDER, ROWS, STEPS = "TRAINER_EQUAL_FOLDER", "TRAINER_EQUAL_ROWS", "TRAINER_EQUAL_STEPS"


def make_inputs(folder: Path, steps: int) -> None:
    """A model's folder and the rows."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    rows = steps * 16  # of llama_training.py: 8 micro-batches of 2
    # A text that can be learned: each token follows from the one before, but for noise.
    tokens = torch.randint(0, VOCABULARY, (rows, 1)).repeat(1, LENGTH)
    noise = torch.randint(0, VOCABULARY, tokens.shape)
    for place in range(1, LENGTH):
        follows = (tokens[:, place - 1] * 5 + 3) % VOCABULARY
        tokens[:, place] = torch.where(torch.rand(rows) < 0.2, noise[:, place], follows)
    labels = tokens.clone()
    labels[torch.arange(LENGTH) < torch.randint(1, LENGTH - 4, (rows, 1))] = -100  # prompts, of unlike lengths
    torch.save((tokens, labels), folder / "rows.pt")


def with_trainer(folder: Path, steps: int) -> dict[str, Any]:
    """What transformers' Trainer makes of it."""
    from transformers import LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    from rtk.benchmarks.llama_training import CLIP, DECAY, MICROBATCHES, RATE, SIZE, WARMUP

    tokens, labels = torch.load(folder / "rows.pt")
    rows = [{"input_ids": a, "labels": b} for a, b in zip(tokens, labels, strict=True)]
    norms: list[float] = []
    parts: list[float] = []

    class InOrder(Trainer):  # type: ignore[misc,unused-ignore]
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(rows)

        def training_step(self, *given: Any, **named: Any) -> Any:
            found = super().training_step(*given, **named)
            parts.append(float(found))
            return found

    class Listen(TrainerCallback):  # type: ignore[misc,unused-ignore]
        def on_log(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            if "grad_norm" in named["logs"]:
                norms.append(float(named["logs"]["grad_norm"]))

    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"),
        per_device_train_batch_size=SIZE,
        gradient_accumulation_steps=MICROBATCHES,
        max_steps=steps,
        learning_rate=RATE,
        weight_decay=DECAY,
        max_grad_norm=CLIP,
        lr_scheduler_type="cosine",
        warmup_steps=WARMUP,
        optim="adamw_torch",
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    model = LlamaForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    InOrder(model, arguments, train_dataset=rows, callbacks=[Listen()]).train()
    losses = [sum(parts[step * MICROBATCHES : (step + 1) * MICROBATCHES]) for step in range(steps)]
    return {"losses": losses, "norms": norms[:steps], "parameters": model.state_dict()}


def with_rtk(folder: Path, steps: int, kill_at: int | None) -> dict[str, Any]:
    """What rtk makes of it, on four workers; from `kill_at` on one of them is killed, and joins again."""
    from transformers import LlamaForCausalLM

    from rtk.exporting import export_checkpoint
    from rtk.planners.pipeline import plan_pipeline
    from rtk.planners.shape import Shape
    from rtk.runners.training import JobConfig, TrainingConfig
    from rtk.schemas.profile import Layer, LayerCost, Profile
    from rtk.tests.runners.processes import ProcessJob

    profile = Profile(tuple(Layer((LayerCost(1.0, 1.0, 1.0),)) for _ in range(LAYERS + 2)))
    plan = plan_pipeline(profile, Shape(2, 2, 4), "zero-bubble")
    saved = folder / f"checkpoint-{kill_at}"
    how = JobConfig(steps, checkpoint=str(saved))
    with ProcessJob(plan, how, TrainingConfig(script=str(SCRIPT))) as job:
        if kill_at is not None:
            job.wait_for_iteration(kill_at, 120)
            job.signal("1/1", signal.SIGKILL)
            since = job.wait_for(lambda one: one["event"] == "recovered")
            job.start("1/1")
            job.wait_for(lambda one: one["event"] == "join", since=since)
        job.result(300)
        committed = [one for one in job.said if one["event"] == "iteration"]
    exported = folder / f"exported-{kill_at}"
    export_checkpoint(str(saved), str(exported))
    model = LlamaForCausalLM.from_pretrained(exported, dtype=torch.float32)
    return {
        "losses": [one["loss"] for one in committed],
        "norms": [one["grad_norm"] for one in committed],
        "parameters": model.state_dict(),
    }


def compared(theirs: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """The largest absolute differences of losses and parameters, and the largest relative one of norms."""
    moved = zip(theirs["losses"], ours["losses"], strict=True)
    norms = zip(theirs["norms"], ours["norms"], strict=True)
    values = [(value, ours["parameters"][name]) for name, value in theirs["parameters"].items()]
    return {
        "loss_difference": max(abs(a - b) for a, b in moved),
        "norm_difference_relative": max(abs(a - b) / a for a, b in norms),
        "parameter_difference": max(float((a - b).abs().max()) for a, b in values),
    }


def main() -> None:
    """Train three times and write the differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("-o", "--output", default="-")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ.update({FOLDER: str(folder / "model"), ROWS: str(folder / "rows.pt"), STEPS: str(given.steps)})
        make_inputs(folder, given.steps)
        theirs = with_trainer(folder, given.steps)
        undisturbed = with_rtk(folder, given.steps, None)
        killed = with_rtk(folder, given.steps, given.steps // 2)
    result = {
        "steps": given.steps,
        "first_loss": theirs["losses"][0],
        "last_loss": theirs["losses"][-1],
        "steps_clipped": sum(norm > 1.0 for norm in theirs["norms"]),
        "undisturbed": compared(theirs, undisturbed),
        "killed": compared(theirs, killed),
        "killed_and_undisturbed": compared(undisturbed, killed),
        "versions": {name: version(name) for name in ("accelerate", "transformers")},
    }
    write_result(result, given.output)


if __name__ == "__main__":
    main()
