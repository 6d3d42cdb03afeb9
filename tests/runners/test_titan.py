"""torchtitan's own trainer, as released, over plans of rtk: run by rtk, and by torch from what is exported.

The file is also the program of one rank, which trains the same model several times. torchtitan is no part of the test
environment, for it brings a hundred packages: `.ci/run` makes it one of its own, and elsewhere this is skipped.
"""

import importlib
import json
import os
import runpy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from torch import distributed

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.plain.slipstream import plan_slipstream
from rtk.planners.shape import Shape
from rtk.runners.foreign import export_plan
from rtk.runners.torch.titan import pipelining_fn
from rtk.schemas.documents import write_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.placement import v_placement
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile

if __name__ != "worker":
    from ..warm import fork
    from .placed import placed_plan

# torch runs an export by its settings, or by its pipelining.py with the receives of the plan, or its own orders.
Runtime = Literal["torch", "torch, fully_shard", "torch, receives", "torch's own", "rtk"]
Planned = Literal["1f1b", "zero-bubble", "interleaved 1F1B", "V, zero-bubble"]

STAGES, MICROBATCHES, ROWS, LENGTH, STEPS = 2, 4, 1, 16, 3
BLOCKS = 6  # of torchtitan's debug model
PROFILE = Profile(tuple(Layer((LayerCost(1.0, 1.0, 1.0),)) for _ in range(BLOCKS + 2)))
DEADLINE_S = 390.0


def make_plan(planned: Planned, pipelines: int = 1) -> Plan:
    """Two ranks, of a stage each or of two."""
    shape = Shape(STAGES, pipelines, MICROBATCHES)
    if planned == "interleaved 1F1B":
        return plan_pipeline(PROFILE, replace(shape, placement="loop", chunks=2), "1f1b")
    if planned == "V, zero-bubble":
        return plan_pipeline(PROFILE, replace(shape, placement="v", chunks=2), "zero-bubble")
    return plan_pipeline(PROFILE, shape, planned)


def let_torchtitan_run_on_cpus() -> None:
    """What torchtitan 0.3.0 wants of a GPU, or of a nightly torch."""
    nothing = SimpleNamespace(
        **dict.fromkeys(("set_device", "reset_peak_memory_stats", "empty_cache", "synchronize"), lambda *_, **__: None),
        device_count=lambda: 1,
        current_device=lambda: 0,
        get_device_name=lambda *_: "cpu",
        get_device_properties=lambda *_: SimpleNamespace(total_memory=2**30, name="cpu"),
        memory_stats=lambda *_: {},
    )
    torch._utils._get_available_device_type = lambda: "cpu"
    torch._utils._get_device_module = lambda _: nothing  # type: ignore[assignment]
    from torch.distributed.pipelining.schedules import PipelineScheduleSingle, _PipelineScheduleRuntime

    utils: Any = importlib.import_module("torchtitan.distributed.utils")
    attention: Any = importlib.import_module("torchtitan.models.common.attention")
    utils.set_pg_timeouts = lambda **_: None  # a barrier that gloo refuses, and a function that torch 2.13 lacks

    def dense(
        self: Any,
        q_BLNH: torch.Tensor,  # noqa: N803 - its parallelize looks for these names
        k_BLNH: torch.Tensor,  # noqa: N803
        v_BLNH: torch.Tensor,  # noqa: N803
        *,
        attention_masks: Any,
        **_: Any,
    ) -> torch.Tensor:
        """FlexAttention cannot go backward on a CPU: the same mask, dense."""
        rows, queries, keys = (torch.arange(n) for n in (*q_BLNH.shape[:2], k_BLNH.shape[1]))
        places = rows[:, None, None], torch.tensor(0), queries[None, :, None], keys[None, None, :]
        query, key, value = (one.transpose(1, 2) for one in (q_BLNH, k_BLNH, v_BLNH))
        mask = attention_masks.mask_mod(*places)[:, None]
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2)

    attention.FlexAttention.forward = dense

    def step(self: Any, **given: Any) -> None:
        """By micro-batches, which a later torch takes in `step`."""
        for stage in self._stages if hasattr(self, "_stages") else [self._stage]:
            stage.has_backward = True
            stage.clear_runtime_states()
        self._step_microbatches(**given)

    for runtime in (_PipelineScheduleRuntime, PipelineScheduleSingle):
        runtime.step = step  # type: ignore[method-assign,assignment]


def trainer_config(parallelism: dict[str, Any], runtime: Runtime, plan_file: str, folder: str) -> Any:
    """A trainer of the debug Llama on tokens made here, two documents a row."""
    titan: Any = SimpleNamespace(
        **{
            name.rpartition(".")[2]: importlib.import_module(f"torchtitan.{name}")
            for name in ("trainer", "config", "models.llama3", "components.loss", "components.dataloader")
        },
        tokens=importlib.import_module("torchtitan.components.tokenizer"),
        optimizers=importlib.import_module("torchtitan.components.optimizer"),
    )

    class Tokens(titan.dataloader.BaseDataLoader):  # type: ignore[misc]
        @dataclass(kw_only=True, slots=True)
        class Config(titan.dataloader.BaseDataLoader.Config):  # type: ignore[misc]
            pass

        def __init__(self, config: Any, *, dp_rank: int, local_batch_size: int, seq_len: int, **_: Any) -> None:
            self.generator = torch.Generator().manual_seed(1 + dp_rank)
            self.shape = local_batch_size, seq_len + 1

        def __iter__(self) -> Iterator[Any]:
            while True:
                row = torch.randint(0, 2048, self.shape, generator=self.generator)
                labels = row[:, 1:].clone()
                labels[:, : int(row[0, 0]) % 8] = -100  # unlike numbers of tokens that count
                first = 5 + int(row[0, 1]) % 6
                positions = torch.cat([torch.arange(first), torch.arange(LENGTH - first)]).expand(labels.shape)
                yield {"input": row[:, :-1], "positions": positions}, labels

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, _: dict[str, Any]) -> None:
            pass

    class Nothing(titan.tokens.BaseTokenizer):  # type: ignore[misc]
        @dataclass(kw_only=True, slots=True)
        class Config(titan.tokens.BaseTokenizer.Config):  # type: ignore[misc]
            pass

        def __init__(self, config: Any, **_: Any) -> None:
            super().__init__()

        encode = decode = get_vocab_size = lambda self: None

    spec = titan.llama3.model_registry("debugmodel")
    if runtime == "rtk":
        spec.pipelining_fn = pipelining_fn(plan_file)
    elif runtime != "torch, fully_shard":  # which torchtitan's own function applies
        spec.parallelize_fn = lambda model, **_: model
    if runtime == "torch, receives":
        spec.pipelining_fn = runpy.run_path(str(Path(plan_file).parent / "pipelining.py"))["pipelining_fn"]
    made = titan.trainer.Trainer.Config(
        model_spec=spec,
        dump_folder=folder,
        tokenizer=Nothing.Config(),
        dataloader=Tokens.Config(),
        optimizer=titan.optimizers.default_adamw(lr=8e-4),
        loss=titan.loss.CrossEntropyLoss.Config(),
        training=titan.config.TrainingConfig(
            local_batch_size=MICROBATCHES * ROWS,
            seq_len=LENGTH,
            steps=STEPS,
            disable_cuda_graphs=True,
            mixed_precision_param="float32",
        ),
        parallelism=titan.config.ParallelismConfig(**parallelism),
        activation_checkpoint=None,
    )
    made.lr_scheduler.warmup_steps = 1
    made.metrics.log_freq = 1
    made.debug.seed = 7
    return made


def local(parameter: Any) -> torch.Tensor:
    """A parameter that fully_shard may have wrapped, for one rank."""
    found: torch.Tensor = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return found.clone()


def train(plan_file: str, runtime: Runtime, folder: str, accumulated: int) -> dict[str, Any]:
    """The grad norms, losses and parameters of a run on this rank."""
    parallelism = json.loads((Path(plan_file).parent / "parallelism.json").read_text())
    if runtime in ("rtk", "torch's own"):
        parallelism["pipeline_parallel_schedule_csv"] = ""
    config = trainer_config(parallelism, runtime, plan_file, folder)
    config.training.global_batch_size = (
        accumulated * MICROBATCHES * ROWS * parallelism["data_parallel_replicate_degree"]
    )
    trainer = importlib.import_module("torchtitan.trainer").Trainer(config)
    found: dict[str, Any] = {"norms": [], "losses": []}

    def log(step: int, loss: float, _: float, norm: float, **__: Any) -> None:
        found["norms"].append(norm)
        found["losses"].append(loss)

    trainer.metrics_processor.log = log
    steps = trainer.batch_generator(trainer.dataloader)
    for trainer.step in range(1, STEPS + 1):
        trainer.train_step(steps)

    found["parameters"] = {
        name: local(value.detach()) for part in trainer.model_parts for name, value in part.named_parameters()
    }
    trainer.close()
    distributed.destroy_process_group()
    return found


def run_rank(rank: int, folder: Path, cases: list[list[Any]]) -> None:
    """Train once a case, on this rank."""
    torch.set_num_threads(1)
    torch.autograd.set_multithreading_enabled(False)  # as its init_distributed does
    torch._dynamo.config.disable = True  # it would take seconds to compile what makes the masks
    let_torchtitan_run_on_cpus()
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(STAGES)})
    for case, (plan_file, runtime, accumulated) in enumerate(cases):
        meeting = f"file://{folder / f'store-{case}'}"
        distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=STAGES)
        torch.save(train(plan_file, runtime, str(folder), accumulated), folder / f"{case}.{rank}")


Case = tuple[Planned, Runtime, int]  # and calls of a pipeline's step a step of the optimizer
CASES: tuple[Case, ...] = (
    ("1f1b", "torch's own", 1),
    ("zero-bubble", "rtk", 1),
    ("1f1b", "torch's own", 2),
    ("zero-bubble", "rtk", 2),
)
EXPORTED: tuple[Case, ...] = (
    ("1f1b", "torch", 1),
    ("1f1b", "torch, fully_shard", 1),
    ("zero-bubble", "torch", 1),
    ("zero-bubble", "torch, receives", 1),
    ("interleaved 1F1B", "torch, receives", 1),
    ("V, zero-bubble", "torch", 1),
    ("V, zero-bubble", "torch, receives", 1),
)
# Where ranks hold other modules, torchtitan gives these other values at the start: each is compared with torch's own
# schedule for its placement, which is 1F1B where a rank has one stage.
OWN: dict[Planned, Case] = {
    "1f1b": CASES[0],
    "zero-bubble": CASES[0],
    "interleaved 1F1B": ("interleaved 1F1B", "torch's own", 1),
    "V, zero-bubble": ("V, zero-bubble", "torch's own", 1),
}
pytestmark = pytest.mark.timeout(400)  # so many trainings, one after the other


def train_all(folder: Path, cases: Sequence[Case]) -> dict[Case, list[dict[str, Any]]]:
    """What each rank found, by case."""
    files = []
    for planned, runtime, accumulated in cases:
        exported, plan = folder / planned, make_plan(planned)
        export_plan(plan, "torchtitan", folder=str(exported), microbatch_size=ROWS, yes_unsharded=True).write(
            str(exported)
        )
        write_document(str(exported / "plan.json"), plan)
        files.append([str(exported / "plan.json"), runtime, accumulated])
    ranks = [fork(__file__, rank, folder, files) for rank in range(STAGES)]
    try:
        deadline = time.monotonic() + DEADLINE_S
        for rank in ranks:
            rank.join(max(0.0, deadline - time.monotonic()))
        assert [rank.exitcode for rank in ranks] == [0] * STAGES
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
    return {case: [torch.load(folder / f"{n}.{rank}") for rank in range(STAGES)] for n, case in enumerate(cases)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, list[dict[str, Any]]]:
    """What each rank found, by case."""
    pytest.importorskip("torchtitan")
    return train_all(tmp_path_factory.mktemp("titan"), tuple(dict.fromkeys((*CASES, *EXPORTED, *OWN.values()))))


@pytest.mark.parametrize(("accumulated", "tolerance"), [(1, 1e-6), (2, 5e-6)])
def test_a_plan_trains_as_torchs_own_runtime(
    trained: dict[Case, list[dict[str, Any]]], accumulated: int, tolerance: float
) -> None:
    """3 AdamW steps, clipped, of the debug Llama; documents by positions, ignored targets; a split backward pass.

    Where gradients are accumulated over two calls a step, they are sums of other orders.
    """
    runs = (trained[planned, runtime, accumulated] for planned, runtime, _ in CASES[:2])
    for theirs, ours in zip(*runs, strict=True):
        assert len(set(theirs["norms"])) == STEPS
        assert ours["norms"] == pytest.approx(theirs["norms"], rel=1e-5)
        assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-6)
        assert ours["parameters"].keys() == theirs["parameters"].keys()
        for name, value in theirs["parameters"].items():
            torch.testing.assert_close(ours["parameters"][name], value, atol=tolerance, rtol=0)


@pytest.mark.parametrize("case", EXPORTED)
def test_torch_trains_by_an_export_as_by_its_own_schedule(
    trained: dict[Case, list[dict[str, Any]]], case: Case, record_property: Callable[[str, object], None]
) -> None:
    """Its settings, or its pipelining.py, in torchtitan's trainer: 3 AdamW steps, every parameter to 1e-6."""
    theirs, ours = trained[OWN[case[0]]], trained[case]
    assert ours[0]["norms"] == pytest.approx(theirs[0]["norms"], rel=1e-5)
    wanted, found = ({k: v for rank in one for k, v in rank["parameters"].items()} for one in (theirs, ours))
    assert found.keys() == wanted.keys()
    record_property("difference", max(float((found[name] - wanted[name]).abs().max()) for name in wanted))
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, atol=1e-6, rtol=0)


def settings(**changes: Any) -> dict[str, Any]:
    """What torchtitan's trainer gives a `pipelining_fn`, as far as it is looked at before the model is cut."""
    given: dict[str, Any] = {
        "pp": STAGES,
        "dp_replicate": 2,
        "blocks": BLOCKS,
        "local_batch_size": MICROBATCHES * ROWS,
        "mixed_precision_param": "float32",
        "enable_cpu_offload": False,
        **dict.fromkeys(("tp", "cp", "ep", "dp_shard"), 1),
        **changes,
    }
    rest = dict.fromkeys(("compile_config", "ac_config", "dump_folder", "device", "parallelize_fn", "loss_fn"))
    return {
        "parallel_dims": SimpleNamespace(**given),
        "training": SimpleNamespace(dtype="float32", **given),
        "parallelism": SimpleNamespace(pipeline_parallel_microbatch_size=ROWS),
        "model_config": SimpleNamespace(layers=range(given["blocks"])),
        **rest,
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pp": 4}, "2 stages and 2 pipelines, the job 4 and 2"),
        ({"dp_replicate": 1}, "2 stages and 2 pipelines, the job 2 and 1"),
        ({"tp": 2}, "tensor_parallel_degree is 2"),
        ({"cp": 2}, "context_parallel_degree is 2"),
        ({"ep": 2}, "expert_parallel_degree is 2"),
        ({"dp_shard": 2}, "data_parallel_shard_degree is 2"),
        ({"local_batch_size": 6}, "have 4 micro-batches, the job's 6"),
        ({"blocks": 5}, "the plan cuts 8 layers, the model has 7"),
        ({"mixed_precision_param": "bfloat16"}, "computation is in bfloat16 with parameters in float32"),
        ({"enable_cpu_offload": True}, "offloading"),
    ],
)
def test_settings_that_do_not_go_with_the_plan_are_refused(changes: dict[str, Any], words: str) -> None:
    """Before anything is cut or connected, with the setting and what to set it to."""
    with pytest.raises(InvalidInputError, match=words) as caught:
        pipelining_fn(make_plan("1f1b", 2))(torch.nn.Identity(), **settings(**changes))
    assert caught.value.where is not None
    assert caught.value.fix is not None


def test_placements_are_refused() -> None:
    """torchtitan is given one part a rank."""
    with pytest.raises(InvalidInputError, match=r"rtk\.torchtitan takes no plan whose workers hold several"):
        pipelining_fn(placed_plan(v_placement(2), BLOCKS + 2, (MICROBATCHES,)))(torch.nn.Identity(), **settings())


def test_orders_beyond_a_pipeline_are_refused(tmp_path: Path) -> None:
    """The trainer gives each replica its own data only."""
    plan = plan_slipstream(PROFILE, pp=STAGES, dp=2, microbatches=MICROBATCHES, failed=["1/1"])
    write_document(str(tmp_path / "plan.json"), plan)
    with pytest.raises(InvalidInputError, match="of another pipeline"):
        pipelining_fn(str(tmp_path / "plan.json"))(torch.nn.Identity(), **settings())


if __name__ == "worker":
    run_rank(*globals()["ARGUMENTS"])
