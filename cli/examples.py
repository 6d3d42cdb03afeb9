"""Examples of every command, for its help page: data only, in the order of a first day.

A test runs them in this order in a folder that holds the files of `examples/`. Those that begin as `PARSED` says need
minutes, several processes or a terminal: of them the test holds that they are read as meant.
"""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "": (
        "rtk quickstart",
        "rtk profile gpt-tiny -o p.json",
        "rtk plan pipeline p.json --pp 2 --dp 2 --microbatches 8 -o plan.json",
        "rtk simulate plan.json",
    ),
    "init": (
        "rtk init",
        "rtk init --yes --model gpt-tiny --pp 2 --dp 2",
    ),
    "config": ("rtk config show", "rtk config show --json"),
    "config show": ("rtk config show", "rtk config show --json"),
    "quickstart": (
        "rtk quickstart",
        "rtk quickstart -o first-steps",
    ),
    "profile": (
        "rtk profile gpt-tiny -o p.json",
        "rtk profile llama3-70b --analytic --gpu h100-sxm --tp 1,8 -o llama.json",
        "rtk profile compare p.json refined.json",
    ),
    "profile model": (
        "rtk profile gpt-tiny -o p.json",
        "rtk profile net.py:net -o net.json",
        "rtk profile llama3-70b --analytic --gpu h100-sxm --tp 1,8 -o llama.json",
    ),
    "profile links": (
        "rtk profile links --processes 2 -o network.json",
        "torchrun --nproc-per-node 8 rtk profile links --into p.json",
    ),
    "plan": (
        "rtk plan pipeline p.json --pp 2 --dp 2 --microbatches 8 -o plan.json",
        "rtk plan slipstream p.json --pp 2 --dp 2 --microbatches 8 --failed 1/1 -o adapted.json",
        "rtk plan joint p.json --pp 2 --dp 2 --microbatches 8 --slow 0/1=1.5 -o joint.json",
    ),
    "plan pipeline": (
        "rtk plan pipeline p.json --pp 2 --dp 2 --microbatches 8 -o plan.json",
        "rtk plan pipeline p.json --pp 2 --dp 2 --microbatches 8 --schedule zero-bubble -o zb.json",
        "rtk plan pipeline p.json --pp 2 --dp 3 --microbatches 8 --cluster cluster.yaml -o lab.json",
    ),
    "plan adaptra": (
        "rtk plan adaptra p.json --pp 2 --microbatches 8 --link-delay 0=0.01 -o slow-link.json",
        "rtk plan adaptra p.json --pp 2 --microbatches 8 --link-delay 0=0.01 --technique best -o best.json",
    ),
    "plan slipstream": (
        "rtk plan slipstream p.json --pp 2 --dp 2 --microbatches 8 --failed 1/1 -o adapted.json",
        "rtk plan slipstream p.json --pp 2 --dp 2 --microbatches 8 --max-failures 50% -o atlas",
        "rtk plan slipstream --from atlas --failures 1 -o one-failure.json",
    ),
    "plan joint": (
        "rtk plan joint p.json --pp 2 --dp 2 --microbatches 8 --slow 0/1=1.5 -o joint.json",
        "rtk plan joint p.json --pp 2 --dp 2 --microbatches 8 --failed 1/1 --link-delay 0/0=0.01 -o both.json",
    ),
    "plan templates": (
        "rtk plan templates p.json --nodes 4 -o templates.json",
        "rtk plan templates p.json --cluster cluster.yaml --fault-tolerance 2 -o lab-templates.json",
    ),
    "plan oobleck": (
        "rtk plan oobleck templates.json --nodes 4 --global-batch 64 --microbatch-size 4 -o four.json",
        "rtk plan oobleck templates.json --nodes 3 --global-batch 64 --microbatch-size 4 -o three.json",
    ),
    "plan reconfigure": (
        "rtk plan reconfigure four.json --failed 0/0 -o after.json",
        "rtk plan reconfigure three.json --join 1 -o grown.json",
    ),
    "plan best": (
        "rtk plan best p.json --cluster 2x2 --batch 32 -o best.json",
        "rtk plan best llama3-8b --gpu h100-sxm --cluster 2x8 --batch 64 --schedule 1f1b --chart best.svg",
    ),
    "plan topology": ("rtk plan topology p.json --pp 2 --dp 2 --microbatches 8 --slow 0/1=2 -o moved.json",),
    "plan batch": (
        "rtk plan batch --times 7,3.5,2 --microbatches 32",
        "rtk plan batch --times 7,3.5,2 --microbatches 32 --at-least 4 --solver pyomo",
    ),
    "plan mitigate": (
        "rtk plan mitigate --costs 5,60,1200",
        "rtk plan mitigate --costs S3=60,S4=1200 --json",
    ),
    "explain": (
        "rtk explain plan.json",
        "rtk explain adapted.json --json",
    ),
    "verify": (
        "rtk verify plan.json",
        "rtk verify plan.json adapted.json joint.json --github",
        "rtk verify atlas",
    ),
    "simulate": (
        "rtk simulate plan.json --timeline t.json",
        "rtk simulate plan.json --slow 0/1=1.5 --link-delay 0=0.01",
        "rtk simulate plan.json --iterations 10 --inject faults.jsonl",
    ),
    "run": (
        "rtk run plan.json --model gpt-tiny --iterations 10",
        "rtk run plan.json --model gpt-tiny --iterations 20 --inject faults.jsonl --timeline measured.json",
        "rtk run plan.json --model gpt-tiny --checkpoint saved --resume saved",
    ),
    "coordinate": (
        "rtk coordinate plan.json --listen 10.0.0.5:29400 --secret-file secret --iterations 1000",
        "rtk run plan.json --model gpt-tiny --coordinator 10.0.0.5:29400 --secret-file secret --worker 0/1",
        "rtk coordinate replicas.json --secret-file secret --iterations 1000 --min-workers 2 --join-wait 30s",
    ),
    "checkpoint": ("rtk checkpoint export saved --to hf -o model",),
    "checkpoint export": (
        "rtk checkpoint export saved --to hf -o model",
        "rtk checkpoint export saved/step-00001000 --to hf -o model --dtype bf16",
    ),
    "profile refine": (
        "rtk profile refine p.json --timeline t.json --plan plan.json -o refined.json",
        "rtk profile compare p.json refined.json",
    ),
    "profile compare": (
        "rtk profile compare p.json refined.json",
        "rtk profile compare p.json refined.json --md",
    ),
    "monitor": (
        "rtk monitor -- torchrun --nproc-per-node 4 train.py",
        "rtk monitor -o slow.html -- python train.py",
    ),
    "bubble": (
        "rtk bubble t.json --plan plan.json",
        "rtk bubble t.json -o bubbles.html --json",
    ),
    "detect": (
        "rtk detect train.log",
        "rtk detect train.log -o slow.svg --exit-code",
        "rtk detect train.log --follow",
    ),
    "goodput": (
        "rtk goodput train.log",
        "rtk goodput train.log -o where-it-went.html",
        "rtk goodput train.log --trace failures.jsonl",
    ),
    "doctor": (
        "rtk doctor job.sh",
        "rtk doctor job.sh titan.toml --gpus 512 --iteration-time 12s --checkpoint-every 500",
        'rtk doctor --torchrun "torchrun --nnodes 1:4 --rdzv-backend c10d train.py"',
    ),
    "probe": (
        "rtk probe --processes 4",
        "torchrun --nproc-per-node 8 rtk probe --pairs all",
    ),
    "trace": (
        "rtk trace generate --nodes 28 --days 30 --mtbf 30d --repair 4h -o faults.json",
        "rtk trace show faults.json",
    ),
    "trace generate": (
        "rtk trace generate --nodes 28 --days 30 --mtbf 30d --repair 4h -o faults.json",
        "rtk trace generate --nodes 28 --days 7 --mtbf 60d --repair 4h --slow-every 5d -o slow-days.json",
    ),
    "trace convert": ("rtk trace convert spot.csv -o spot.json",),
    "trace show": (
        "rtk trace show spot.csv",
        "rtk trace show faults.json --json",
    ),
    "replay": (
        "rtk replay --profile p.json --trace spot.csv --pp 2 --dp 2 --microbatches 8",
        "rtk replay --profile p.json --trace faults.json --pp 2 --dp 2 --microbatches 8 --policies rtk,oobleck",
        "rtk replay --profile p.json --trace spot.csv --pp 2 --dp 2 --microbatches 8 --html policies.html",
    ),
    "sweep": (
        "rtk sweep sweep.yaml -o sweep",
        "rtk sweep sweep.yaml -o sweep --jobs 8",
    ),
    "reproduce": (
        "rtk reproduce list",
        "rtk reproduce adaptra-figure-8",
        "rtk reproduce all --exit-code",
    ),
    "viz": (
        "rtk viz plan.json -o plan.svg",
        "rtk viz t.json -o t.json.gz",
        "rtk viz plan.json",
    ),
    "diff": (
        "rtk diff plan.json adapted.json",
        "rtk diff plan.json adapted.json --md",
        "rtk diff plan.json zb.json --tolerance 5% --fail-if slower:3%",
    ),
    "export": (
        "rtk export plan.json --to torch-csv -o orders.csv",
        "rtk export plan.json --to torchtitan -o titan",
        "rtk export plan.json --to megatron -o megatron.args",
    ),
    "import": (
        "rtk import orders.csv --from torch-csv --profile p.json -o imported.json",
        "rtk import megatron.args --from megatron --profile p.json --dp 2 -o imported.json",
    ),
    "schema": (
        "rtk schema",
        "rtk schema plan",
    ),
    "help": (
        "rtk help plan slipstream",
        "rtk help exit-codes",
    ),
    "completion": (
        "rtk completion bash",
        'eval "$(rtk completion bash)"',
    ),
}

# What an example begins with that is not run by the test.
PARSED = (
    "rtk init",
    "rtk quickstart",
    "rtk profile gpt-tiny",
    "rtk profile net.py",
    "rtk profile links",
    "rtk profile refine",
    "rtk run ",
    "rtk coordinate",
    "rtk checkpoint",
    "rtk monitor",
    "rtk probe",
    "rtk detect train.log --follow",
    "rtk reproduce adaptra",
    "rtk reproduce all",
    "rtk sweep",
    "torchrun ",
    "eval ",
)
