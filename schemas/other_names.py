"""What other frameworks call the settings of a training, and what they are called here.

Names are in lower case with underscores, and without the section before a dot (`training.max_norm`). Sources: Hugging
Face `TrainingArguments` (transformers 5) and the options of its example scripts, the options of Megatron-LM
(megatron-core 0.16), torchtitan's job configuration (0.3).
"""

import re
from dataclasses import dataclass

from .text import joined


@dataclass(frozen=True)
class Meant:
    """What somebody means who uses another framework's name.

    Attributes:
        names: of our keys, which are our options with underscores; none where there is no such setting here.
        note: what is otherwise than there, or what to do where there is no such setting.
    """

    names: tuple[str, ...] = ()
    note: str = ""

    def options(self) -> str:
        """`--lr and --warmup`."""
        return joined(f"--{name.replace('_', '-')}" for name in self.names)

    def keys(self) -> str:
        """`lr and warmup`."""
        return joined(self.names)


_ACCUMULATION = Meant((), "gradients are accumulated over the plan's micro-batches: rtk plan … --microbatches N")
_EPOCHS = Meant(("iterations",), "count iterations, not epochs")
_SHAPE = Meant((), "it is the plan's: rtk plan pipeline --pp N --dp N --microbatches N")
_GLOBAL = Meant((), "it is the plan's micro-batches of all pipelines times --microbatch-size")
_RATIO = Meant(("min_lr_ratio",), "a share of --lr")
_SHARE = Meant(("warmup",), "a number of iterations")
_PRECISION = Meant(("precision",))

OTHER_NAMES: dict[str, Meant] = {
    # Accumulation and batches
    **dict.fromkeys(("gradient_accumulation_steps", "gradient_accumulation", "accumulate_grad_batches", "grad_accum"),
                    _ACCUMULATION),
    **dict.fromkeys(("global_batch_size", "train_batch_size", "batch_size", "rampup_batch_size"), _GLOBAL),
    **dict.fromkeys(("per_device_train_batch_size", "per_gpu_train_batch_size", "micro_batch_size",
                     "local_batch_size"), Meant(("microbatch_size",))),
    **dict.fromkeys(("per_device_eval_batch_size",), Meant(("eval_microbatches",), "in micro-batches")),
    **dict.fromkeys(("pipeline_model_parallel_size", "pipeline_parallel_degree", "tensor_model_parallel_size",
                     "tensor_parallel_degree", "data_parallel_replicate_degree"), _SHAPE),
    **dict.fromkeys(("seq_length", "seq_len", "max_seq_length", "max_length", "block_size"),
                    Meant(("sequence_length",))),
    # How long, and where it is kept
    **dict.fromkeys(("max_steps", "train_iters", "steps", "training_steps"), Meant(("iterations",))),
    **dict.fromkeys(("num_train_epochs", "epochs", "train_samples"), _EPOCHS),
    **dict.fromkeys(("output_dir", "save", "save_dir", "dump_folder"), Meant(("checkpoint",))),
    **dict.fromkeys(("save_steps", "save_interval"), Meant(("checkpoint_every",))),
    **dict.fromkeys(("resume_from_checkpoint", "load"), Meant(("resume",))),
    **dict.fromkeys(("tensorboard_dir", "logging_dir", "report_to", "save_tb_folder", "enable_tensorboard"),
                    Meant(("log_to",), "as tensorboard:FOLDER")),
    # Data and model
    **dict.fromkeys(("data_path", "train_data_path", "train_file", "dataset_name", "dataset", "dataset_path"),
                    Meant(("data",))),
    **dict.fromkeys(("tokenizer_name", "tokenizer_model", "tokenizer_path", "hf_assets_path"), Meant(("tokenizer",))),
    **dict.fromkeys(("validation_file", "valid_data_path", "eval_file"), Meant(("eval_data",))),
    **dict.fromkeys(("eval_steps", "eval_interval", "validation_steps", "eval_strategy"), Meant(("eval_every",))),
    **dict.fromkeys(("eval_iters",), Meant(("eval_microbatches",), "in micro-batches")),
    **dict.fromkeys(("model_name_or_path", "model_name"), Meant(("model",))),
    **dict.fromkeys(("pretrained_checkpoint", "initial_load_path"), Meant(("weights",))),
    # Optimizer and learning rate
    **dict.fromkeys(("optim", "optimizer_name"), Meant(("optimizer",))),
    **dict.fromkeys(("learning_rate",), Meant(("lr",))),
    **dict.fromkeys(("adam_beta1", "adam_beta2", "beta1", "beta2"), Meant(("betas",), "both with a comma")),
    **dict.fromkeys(("max_grad_norm", "clip_grad", "max_norm", "gradient_clip_val", "grad_clip", "gradient_clipping"),
                    Meant(("clip_norm",))),
    **dict.fromkeys(("lr_scheduler_type", "lr_decay_style", "decay_type", "lr_scheduler"), Meant(("lr_schedule",))),
    **dict.fromkeys(("warmup_steps", "lr_warmup_iters", "num_warmup_steps", "lr_warmup_steps"), Meant(("warmup",))),
    **dict.fromkeys(("warmup_ratio", "lr_warmup_fraction"), _SHARE),
    **dict.fromkeys(("lr_decay_iters", "total_steps"), Meant(("lr_steps",))),
    **dict.fromkeys(("min_lr", "min_lr_factor", "lr_end"), _RATIO),
    # Precision
    **dict.fromkeys(("bf16", "mixed_precision", "mixed_precision_param", "torch_dtype"), _PRECISION),
    **dict.fromkeys(("fp16",), Meant(("precision",), "fp16-master in place of fp16")),
}  # fmt: skip


def meant_by(name: str) -> Meant | None:
    """What a name of another framework means here; None where it is none.

    Args:
        name: such as `--max_grad_norm`, `lr-scheduler-type` or `training.max_norm`.
    """
    plain = re.sub("[-]", "_", name.lstrip("-").lower())
    return OTHER_NAMES.get(plain) or OTHER_NAMES.get(plain.rpartition(".")[2])
