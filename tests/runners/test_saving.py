"""Workers of several ranks, with a sharded optimizer or without, save together what others of any kind read."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.profilers.models.gpt import TENSOR_PARALLEL, gpt_layers, language_model_loss
from rtk.profilers.models.joint import ModelCuts
from rtk.profilers.models.presets import GptConfig
from rtk.runners.checkpoint import read_manifest
from rtk.runners.resilience.protocol import Publish, StepTerms
from rtk.runners.resilience.worker_rules import SavePart
from rtk.runners.torch.held_stage import HeldStage
from rtk.runners.torch.precision import Precision
from rtk.runners.torch.rank_group import RankGroup
from rtk.runners.torch.recut import recut
from rtk.runners.torch.saving import BlockHoldings, load_saved, publish_whole, save_part
from rtk.runners.torch.task import Task
from rtk.runners.torch.ties import ties_of
from rtk.schemas import blocks
from rtk.schemas.blocks import BlockId, Holders, deal, split_piece
from rtk.schemas.checkpoint import CheckpointFile
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Layers
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.schemas.slices import CUT

from . import scripted
from .ranked import RankedJob, losses_alone
from .ranked import plan_of as ranked_plan
from .test_resharding import alone, shared
from .test_resilient_worker import job_of, slipstream

LAYERS, STEPS = 4, 2
CUTS = ModelCuts(TENSOR_PARALLEL)


@pytest.fixture(autouse=True, scope="module")
def short_blocks() -> Iterator[None]:
    """Small layers have several blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", 192)
        yield


def _model(is_tied: bool) -> list[nn.Module]:
    torch.manual_seed(1)
    layers = gpt_layers(GptConfig(blocks=LAYERS - 2, width=16, heads=4, vocabulary=31, positions=8))
    if is_tied:
        layers[-1].logits.weight = layers[0].token.weight  # type: ignore[union-attr]
    return layers


CUT_NAMES = {f"{n}.{name}": cut for n, layer in enumerate(_model(False)) for name, cut in CUTS.tensors(layer).items()}


@dataclass(frozen=True)
class Kind:
    """What workers are like: ranks, peers, where stages begin, and whether their optimizers are sharded."""

    degree: int = 1
    peers: int = 1
    edges: tuple[int, ...] = (0, LAYERS)
    is_sharded: bool = False
    is_tied: bool = False
    precision: Precision = "fp32"

    def stage(self, layers: Layers, share: int) -> HeldStage:
        """One rank's, as at first."""
        whole = _model(self.is_tied)
        ties = ties_of(whole)
        if self.degree > 1:
            whole = [CUTS.cut(layer, RankGroup(self.degree, share)) for layer in whole]
        return HeldStage(
            whole, layers, language_model_loss, lambda one: torch.optim.AdamW(one, lr=0.01), ties=ties,
            is_last=layers[1] == LAYERS, precision=self.precision, share=share, is_sharded=self.is_sharded,
        )  # fmt: skip

    def dealt(self, held: HeldStage) -> dict[BlockId, Holders]:
        """Who holds which block."""
        return deal(held.blocks.sizes, [str(peer) for peer in range(self.peers)]) if held.blocks is not None else {}


def _step(held: HeldStage, share: int, degree: int, number: int) -> None:
    """One with gradients that depend on a number's place in the whole parameter only."""
    held.begin()
    for name, parameter in held.stage.layers.named_parameters():
        place, *path = (part for part in name.split(".") if part != CUT)
        entry = ".".join([str(held.numbers[int(place)]), *path])
        cut, shape = CUT_NAMES.get(entry), list(parameter.shape)
        if cut is not None:
            shape[cut.dimension] = cut.size
        whole = torch.arange(float(torch.Size(shape).numel())).reshape(shape).add(number).sin()
        slices = recut([{entry: whole}], [entry], {} if cut is None else {entry: cut}, degree, share)
        assert parameter.grad is not None
        parameter.grad.copy_(slices[entry])
    held.step(StepTerms(1.0, None, number))


def _gather(peers: Sequence[HeldStage], dealt: Mapping[BlockId, Holders]) -> None:
    for block, (owner, *_) in dealt.items():
        values = [held.blocks.values_of([block]).values() for held in peers if held.blocks is not None]
        for one in values:
            for into, value in zip(one, values[owner], strict=True):
                into.copy_(value)


Group = tuple[list[HeldStage], dict[BlockId, Holders]]


def _trained(kind: Kind) -> dict[tuple[int, int], Group]:
    """By stage and rank the peers that hold it; those of a sharded optimizer have not gathered the last step."""
    found = {}
    for stage, layers in enumerate(itertools.pairwise(kind.edges)):
        for share in range(kind.degree):
            peers = [kind.stage(layers, share) for _ in range(kind.peers if kind.is_sharded else 1)]
            dealt = kind.dealt(peers[0])
            for peer, held in enumerate(peers):
                if held.blocks is not None:
                    held.blocks.hold(block for block, holders in dealt.items() if peer in holders)
            for number in range(STEPS):
                _gather(peers, dealt)
                for held in peers:
                    _step(held, share, kind.degree, number)
            found[stage, share] = peers, dealt
    return found


@cache
def _reference(is_tied: bool, precision: Precision) -> dict[str, torch.Tensor]:
    """The state of one worker of one rank that holds all, after the same steps."""
    return _trained(Kind(is_tied=is_tied, precision=precision))[0, 0][0][0].state()


@dataclass
class Writer:
    """Stands for a worker's `Task`, as far as saving asks."""

    name: str
    degree: int = 1
    share: int = 0
    seed: int = 0
    batch: object = None
    names: object = None
    settings: Any = None
    plan: Any = None


def _task(**given: Any) -> Task:
    profile = Profile((Layer((LayerCost(1.0, 1.0, 1.0),), activation_bytes=2, weight_stash_bytes=1),) * LAYERS)
    return Writer(**given, settings={}, plan=plan_pipeline(profile, Shape(1, 1, 2), "1f1b"))  # type: ignore[return-value]


def _saved(kind: Kind, folder: Path, is_last: bool = False, gone: int = -1) -> list[CheckpointFile]:
    """The parts that all write, but for a peer that is gone."""
    parts = []
    for (stage, share), (peers, dealt) in _trained(kind).items():
        together = tuple(f"{peer}/{stage}" for peer in range(len(peers)) if is_last or peer != gone)
        layers = (kind.edges[stage], kind.edges[stage + 1])
        for peer, held in enumerate(peers):
            holdings = None
            if held.blocks is not None:
                holders = {block: [f"{one}/{stage}" for one in holding] for block, holding in dealt.items()}
                holdings = BlockHoldings(held.blocks.held, holders)
            if peer != gone:
                what = SavePart(str(folder), STEPS, layers, together if len(together) > 1 else (), is_last)
                task = _task(name=f"{peer}/{stage}", degree=kind.degree, share=share)
                saved = save_part(task, held, CUT_NAMES if kind.degree > 1 else {}, what, holdings)
                assert saved.part is not None, saved.error
                parts.append(saved.part)
    return parts


def _published(folder: Path, parts: Sequence[CheckpointFile]) -> Path:
    published = publish_whole(_task(name="0/0"), LAYERS, Publish(str(folder), STEPS, tuple(parts), STEPS))
    assert published.path is not None, published.error
    assert (published.error is None) == (not published.path.endswith("-partial"))
    return Path(published.path)


def _assert_loads(path: Path, kind: Kind) -> None:
    """Every rank of every worker has bit for bit what it would have after the same steps."""
    whole = _reference(kind.is_tied, kind.precision)
    for layers in itertools.pairwise(kind.edges):
        for share in range(kind.degree):
            cuts = CUT_NAMES if kind.degree > 1 else {}
            for peer in range(kind.peers if kind.is_sharded else 1):
                held = kind.stage(layers, share)
                if held.blocks is not None:
                    held.blocks.hold(block for block, holders in kind.dealt(held).items() if peer in holders)
                load_saved(held, path, ties_of(_model(kind.is_tied)), cuts, kind.degree, share)
                for name, value in held.state().items():
                    entry, span = split_piece(name)
                    wanted = recut([whole], [entry], cuts, kind.degree, share)[entry]
                    wanted = wanted.reshape(-1)[slice(*span)] if span is not None and wanted.dim() else wanted
                    assert torch.equal(value, wanted), name


@st.composite
def kinds(draw: st.DrawFn) -> Kind:
    """Workers of any kind."""
    inner = draw(st.sets(st.integers(1, LAYERS - 1), max_size=2))
    return Kind(
        draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 3)), (0, *sorted(inner), LAYERS), draw(st.booleans())
    )


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(kinds(), kinds(), st.booleans())
def test_workers_of_any_kind_go_on_from_those_of_any_other(
    tmp_path_factory: pytest.TempPathFactory, saving: Kind, loading: Kind, is_last: bool
) -> None:
    """Ranks, peers, stages, sharded or not: what is loaded is bit for bit what was trained, also before a gather."""
    folder = tmp_path_factory.mktemp("checkpoints")
    _assert_loads(_published(folder, _saved(saving, folder, is_last)), loading)


@pytest.mark.parametrize("is_tied", [False, True])
def test_masters_and_tied_weights(tmp_path: Path, is_tied: bool) -> None:
    """Masters are pieces, too; what stages share is in no block, and one peer saves it."""
    kind = Kind(1, 3, (0, 2, LAYERS), is_sharded=True, is_tied=is_tied, precision="bf16-master")
    path = _published(tmp_path, _saved(kind, tmp_path))
    for other in (replace(kind, is_sharded=False), replace(kind, peers=2, edges=(0, LAYERS))):
        _assert_loads(path, other)


def test_each_block_is_saved_once(tmp_path: Path) -> None:
    """Peers share out the writing: files of about the same size, no larger together than one of all."""
    kind = Kind(1, 3, is_sharded=True)
    files = _saved(kind, tmp_path / "pieces")
    assert [file.name for file in files] == [f"layers-0-{LAYERS}-part-{peer}-of-3.safetensors" for peer in range(3)]
    numbers = sum(value.numel() * value.itemsize for value in _reference(False, "fp32").values())
    headers = [int.from_bytes(path.read_bytes()[:8], "little") for path in tmp_path.rglob("*.safetensors")]
    sizes = [file.size_bytes for file in files]
    assert sum(sizes) - sum(headers) == pytest.approx(numbers, rel=0.02)  # a step for each piece
    assert max(sizes) < 1.3 * min(sizes)


@pytest.mark.parametrize("is_last", [False, True])
def test_a_peer_is_gone(tmp_path: Path, is_last: bool) -> None:
    """Its blocks are written by their other holders: those that are asked, or at the end all that have some."""
    kind = Kind(1, 3, is_sharded=True)
    path = _published(tmp_path, _saved(kind, tmp_path, is_last, gone=0))
    _assert_loads(path, Kind(2))


def test_two_peers_are_gone(tmp_path: Path) -> None:
    """A block without any holder: its layers are missing, and told; others are saved."""
    kind = Kind(1, 3, (0, 1, LAYERS), is_sharded=True)
    parts = _saved(kind, tmp_path, is_last=True)
    left = [part for part in parts if part.layers != (0, 1) or part.part == (2, 3)]
    published = publish_whole(_task(name="2/0"), LAYERS, Publish(str(tmp_path), STEPS, tuple(left), STEPS))
    assert published.error is not None and published.error.startswith("layer 0: ")
    assert published.path is not None
    assert read_manifest(Path(published.path)).missing == ((0, 1),)


def test_another_optimizer_is_refused(tmp_path: Path) -> None:
    """Masters that the checkpoint lacks, and those that it has and nobody wants, are errors, as of whole states."""
    plain, masters = Kind(1, 2, is_sharded=True, precision="bf16"), Kind(1, 2, is_sharded=True, precision="bf16-master")
    for saving, loading, match in ((plain, masters, "in the state"), (masters, plain, "in the state|not held here")):
        folder = tmp_path / saving.precision
        path = _published(folder, _saved(saving, folder))
        for kind in (loading, replace(loading, is_sharded=False)):
            with pytest.raises(InvalidInputError, match=match):
                _assert_loads(path, kind)


# Jobs


def test_jobs_go_on_from_each_other(tmp_path: Path) -> None:
    """A sharded job that has lost a worker is saved, resumed whole in one stage, and from there sharded again."""
    told = {"settings": {"lr": 1e-4, "shard_optimizer": True}}
    folders = [tmp_path / name for name in ("first", "second", "third")]
    job = shared(job_of(slipstream("adaptive", 2, 3), 4, ("1/0", 1), checkpoint=str(folders[0])), **told)
    assert job.run().exit_code == 0
    assert [one.get("error") for one in job.events("checkpoint")] == [None]
    files = sorted(path.name for path in (folders[0] / "step-00000004").glob("*.safetensors"))
    assert files == [
        *(f"layers-0-3-part-{number}-of-2.safetensors" for number in range(2)),
        *(f"layers-3-6-part-{number}-of-3.safetensors" for number in range(3)),
    ]
    losses = job.losses()
    for plan, is_sharded, number in ((scripted.plan_of(1, 1, 6), False, 1), (slipstream("adaptive", 1, 3), True, 2)):
        done = 2 + 2 * number
        how = {"first_iteration": done, "checkpoint": str(folders[number])}
        how["resume"] = str(folders[number - 1] / f"step-{done:08d}")
        job = shared(job_of(plan, done + 2, **how), shard_optimizer=is_sharded, **(told if is_sharded else {}))
        assert job.run().exit_code == 0
        losses += job.losses()
    assert losses == pytest.approx(alone(8, 6)[0], rel=0, abs=1e-12)


def test_ranks_go_on_from_one_process(tmp_path: Path) -> None:
    """Real processes: two ranks go on from the checkpoint of one process, each with its slices, and save these."""
    losses: list[float] = []
    for degree, iterations in ((1, 2), (2, 4)):
        resume = str(tmp_path) if losses else None
        with RankedJob(ranked_plan(1, 1, 2, degree), iterations, checkpoint=str(tmp_path), resume=resume) as job:
            assert job.result().exit_code == 0
            losses += job.losses()
    assert losses == pytest.approx(losses_alone(4, 2), rel=1e-12)
    names = sorted(path.name for path in (tmp_path / "step-00000004").glob("*.safetensors"))
    assert names == [f"layers-0-4-rank-{rank}-of-2.safetensors" for rank in range(2)]
