"""The commands on record, by group; a group is a file of tests, and its commands share nothing but `inputs/`."""

_PLANNING = """
plan pipeline p.json --pp 2 --dp 2 --microbatches 4 --schedule gpipe
plan pipeline p.json --pp 2 --dp 2 --microbatches 4 --schedule 1f1b -o out.json
plan pipeline p.json --pp 2 --dp 2 --microbatches 4 --schedule zero-bubble -o out.json.gz
plan pipeline - --pp 4 --microbatches 6 --json < four.json
plan pipeline p.json --pp 4 --microbatches 8 --schedule zero-bubble --memory-limit 40,30,20,20
plan pipeline p.json --pp 2 --dp 2 --microbatches 4 --schedule gpipe --memory-limit 100,100
plan pipeline p.json --pp 2 --dp 2 --microbatches 4 --link-delay 0=0.5 --link-delay 1/0=2
plan pipeline p.json --pp 2 --dp 2 --microbatches 4 --cluster c.yaml -o out.json
plan pipeline p.json --pp 2 --dp 2 --microbatches 4 --cluster 2x2 -o out.json
plan pipeline p.json --pp 4 --microbatches 4 --schedule zero-bubble --memory-limit 1 --json
plan adaptra four.json --pp 4 --microbatches 8 --technique initial --link-delay 1=0.015
plan adaptra four.json --pp 4 --microbatches 8 --technique adapted --link-delay 1=0.015
plan adaptra four.json --pp 4 --microbatches 8 --link-delay 1=0.06 -o out.json
plan adaptra p.json --pp 2 --dp 2 --microbatches 4 --link-delay 0=0.5 -o out.json
plan adaptra four.json --pp 4 --microbatches 8 --technique initial --link-delay 1=0.03 --require-optimal --time-limit 0
plan adaptra p.json --pp 2 --microbatches 2 --solver milp --time-limit 60
plan slipstream p.json --pp 2 --dp 2 --microbatches 4 --failed 0/1 --technique adaptive
plan slipstream p.json --pp 2 --dp 2 --microbatches 4 --failed 0/1 --technique decoupled
plan slipstream p.json --pp 2 --dp 2 --microbatches 4 --failed 0/1 --technique staggered -o out.json
plan slipstream p.json --pp 2 --dp 3 --microbatches 4 --failures 2 --json
plan slipstream p.json --pp 2 --dp 3 --microbatches 4 --failures 2 --failed 0/1 --failed 1/0 --cost scheduler
plan slipstream p.json --pp 2 --dp 2 --microbatches 4 --failed 0/1 --memory-limit 64 -o out.json
plan slipstream p.json --pp 2 --dp 2 --microbatches 4 --failed 0/1 --slow 1/0=1.5 --link-delay 0=0.2
plan slipstream p.json --pp 2 --dp 2 --microbatches 4 --failed 0/1 --require-optimal --time-limit 0
plan slipstream p.json --pp 2 --dp 2 --microbatches 4 --failed 0/1 --failed 1/1
plan slipstream p.json --pp 2 --dp 2 --microbatches 4 --max-failures 2 -o out
plan slipstream p.json --pp 2 --dp 3 --microbatches 4 --max-failures 50% --technique adaptive -o out
plan slipstream p.json --pp 2 --dp 2 --microbatches 4 --failure-unit 1x2 --max-failures 2 -o out
plan slipstream p.json --pp 2 --dp 2 --microbatches 4 --max-failures 2 -o begun
plan slipstream --from atlas --failures 1 -o out.json
plan slipstream --from atlas --failed 1/1
plan slipstream --from atlas --failures 3
plan joint p.json --pp 2 --dp 2 --microbatches 4
plan joint p.json --pp 2 --dp 2 --microbatches 4 --failed 0/1 --slow 1/0=1.5 -o out.json
plan joint p.json --pp 2 --dp 3 --microbatches 4 --failed 0/1 --slow 1/0=1.5 --link-delay 2/0=1
plan joint p.json --pp 2 --dp 2 --microbatches 4 --cluster c.yaml --overlay o.yaml --json
plan joint p.json --pp 2 --dp 2 --microbatches 4 --slow 1/0=3 --memory-limit 48 --technique adaptive
plan batch --times 1,1.5,2 --microbatches 12
plan batch --times 1,1.5,2 --microbatches 12 --objective variance --json
plan batch --times 1,1.5,2 --microbatches 12 --multiple-of 2 -o out.json
plan batch --times 1,1.5,2 --microbatches 12 --solver pyomo --at-least 2 --at-most 6,6,6 --json
plan batch --times 1,1.5,2 --microbatches 2
plan templates p.json --nodes 4 --gpus-per-node 1
plan templates p.json --nodes 5 --gpus-per-node 2 --microbatches 6 -o out.json
plan templates p.json --cluster c.yaml --json
plan templates p.json --nodes 1
plan oobleck templates.json --nodes 4 --global-batch 8 --microbatch-size 1
plan oobleck templates.json --nodes 3 --global-batch 8 --microbatch-size 1 --objective variance -o out.json
plan oobleck templates.json --nodes 4 --global-batch 9 --microbatch-size 2
plan reconfigure unlike.json --failed 0/0
plan reconfigure unlike.json --failed 0/0 --join 2 -o out.json
plan reconfigure unlike.json --join 1 --pays-within 0 --json
plan topology p.json --pp 2 --dp 2 --microbatches 4 --slow 0/0=2
plan topology p.json --pp 2 --dp 2 --microbatches 4 --slow 0/0=2 --slow-link 0/0-1/0=1 --schedule zero-bubble
plan mitigate --costs 5,60,1200
plan mitigate --costs S3=60,S4=1200 --left S3=0.2 --revert-cost 30 --json
plan mitigate --costs 5,60,1200 --left 0.6,0.2,0 -o out.json
profile gpt3-175b --analytic --gpu h100-sxm --microbatch-size 1 -o out.json
profile model config.json --analytic --gpu a100-sxm --microbatch-size 1 --sequence-length 32 --tp 1,2,4 --json
profile gpt2.json --analytic --gpu h100-sxm --sequence-length 32 --checkpointing --efficiency 0.4
profile llama3-8b --analytic --cluster c.yaml -o out.json
profile gpt3-13b --analytic --gpu h100-sxn
profile refine p.json --plan plan.json --timeline measured.json
profile refine p.json --plan plan.json --timeline passes.json -o out.json
profile compare p.json p.json
profile compare p.json four.json --exit-code
profile compare p.json four.json --md
import schedule.csv --from torch-csv --profile p.json
import schedule.csv --from torch-csv --profile p.json --dp 2 -o out.json
"""

_RUNNING = """
simulate two.json
simulate plan.json --json
simulate rerouted.json --timeline out.json
simulate - --slow 0/0=2 --link-delay 0=1 --json < plan.json
simulate plan.json --link-delay 1/0=0.5 --transport direct --iterations 3 --timeline out.json.gz
simulate plan.json --jitter 0.1 --seed 3 --timeline out.json
simulate plan.json --cluster c.yaml --overlay o.yaml
simulate unlike.json --json
simulate placed.json
simulate plan.json --profile four.json
simulate plan.json --iterations 6 --inject faults.jsonl
simulate plan.json --iterations 6 --inject faults.jsonl --policy slipstream --timeline out.json
simulate plan.json --iterations 6 --inject faults.jsonl --json --profile p.json --normalize-within 0
simulate whole.json --iterations 6 --inject faults.jsonl --atlas atlas
simulate rerouted.json --iterations 4 --inject more-faults.jsonl
simulate unlike.json --iterations 6 --inject more-faults.jsonl --timeline out.json
simulate plan.json --iterations 40 --inject links.jsonl --timeline out.json
simulate plan.json --iterations 40 --inject links.jsonl --mitigate S3=5,S4=20
simulate plan.json --iterations 6 --inject end.jsonl
simulate plan.json --iterations 6 --inject bad.jsonl --json
replay --profile p.json --pp 2 --dp 2 --microbatches 4 --trace own.jsonl
replay --profile p.json --pp 2 --dp 2 --microbatches 4 --trace own.jsonl --json --policies rtk,slipstream --seed 2
replay --profile p.json --pp 2 --dp 2 --microbatches 4 --trace spot.csv --policies oobleck,varuna,bamboo -o out.json
replay --profile p.json --pp 2 --microbatches 4 --trace spot.csv --cluster 4x1 --cost restart_s=60 --html out.html
replay --profile p.json --pp 2 --dp 2 --microbatches 4 --trace own.jsonl --schedule zero-bubble --until 20min
replay --profile p.json --pp 2 --dp 2 --microbatches 4 --trace parcae.jsonl --memory-limit 48,32 -o out.json.gz
replay --profile p.json --pp 2 --dp 2 --microbatches 4 --trace node-faults.json --nodes 9 --slow-faults --policies rtk
replay --profile p.json --pp 2 --dp 2 --microbatches 4 --trace own.jsonl --policies slipstreem
sweep sweep.yaml -o out
sweep sweep.yaml -o out --json
trace show own.jsonl
trace show spot.csv --json
trace show samples.csv --seed 3
trace show node-faults.json --nodes 9
trace convert own.jsonl -o out.csv
trace convert own.csv
trace convert spot.csv -o out.jsonl
trace convert parcae.jsonl
trace convert samples.csv --leaving newest
trace convert counts.csv --trace-format counts-s -o out.jsonl.gz
trace convert node-faults.json --nodes 9 --slow-faults --seed 1
trace convert faults.jsonl --iteration-time 2s
trace show own.csv --quiet
trace generate --nodes 8 --days 3 --mtbf 2d --repair 4h --seed 1
trace generate --nodes 8 --days 5 --mtbf 2d --distribution weibull --shape 0.7 --repair-distribution fixed --repair 4h
trace generate --nodes 8 --days 2 --rack-size 4 --rack-mtbf 1d --rack-repair 2h --slow-every 1d -o out.csv
trace generate --nodes 4 --days 2 --mtbf 1d --repair 2h --repair-distribution lognormal --slow-link-every 1d
trace generate --nodes 8 --days 2
reproduce list
reproduce --json list
reproduce slipstream-table-2 greyhound-table-5
reproduce adaptra-figure-5 --json
reproduce adaptra-figure-14 --markdown out.md --exit-code
run plan.json --model gpt-tiny --policy fastest
run missing.json --model gpt-tiny
run plan.json
run plan.json --model gpt-tiny --atlas missing
run plan.json --model gpt-tiny --iterations 0 --json
coordinate plan.json --listen nowhere
coordinate missing.json --json
coordinate plan.json --standby
monitor
probe --pairs star
quickstart --output
"""

_LOOKING = """
verify plan.json
verify unlike.json --json
verify placed.json --profile p.json
verify plan.json --profile p.json
verify plan.json --timeline t.json
verify rerouted.json --timeline t.json
verify wrong.json
verify wrong.json --json
verify - < rerouted.json
verify p.json
explain plan.json
explain rerouted.json --json
explain unlike.json
explain placed.json
explain two.json --json
diff plan.json rerouted.json
diff plan.json rerouted.json --json
diff plan.json unlike.json --md --exit-code
diff plan.json plan.json --exit-code
diff plan.json - < placed.json
export plan.json --to torch-csv
export two.json --to torch-csv -o out.csv
export rerouted.json --to torch-csv
viz plan.json
viz t.json --terminal
viz plan.json -o out.html
viz plan.json -o out.svg
viz plan.json -o out.json.gz
viz plan.json --json
viz rerouted.json -o out.svg
viz unlike.json -o out.html
viz t.json -o out.json
viz plan.json t.json -o out.svg
viz templates.json
viz templates.json -o out.svg
viz templates.json -o out.html.gz
viz replay.json
viz replay.json -o out.html
viz replay.json -o out.svg
viz replay.json replay.json -o out.html
viz replay.json -o out.json
viz plan.json -o out.gif
detect csv.log
detect jsonl.log --json
detect rtk_run.log
detect megatron.log -o out.svg
detect torchtitan.log -o out.html
detect nanogpt.log --mode paper --json
detect mlperf.log --exit-code
detect dllogger.log --shortest 5
detect - --format numbers --follow < numbers.log
detect - --follow --json < jsonl.log
detect calls.jsonl -o out.svg
detect dump1 --json
detect inspector.jsonl
detect operations.csv
detect operations.csv -o out.html --json
detect kineto.json
detect csv.log megatron.log --json -o out.html
detect p.json
schema plan
schema profile
schema report --json
schema plam
"""

_HELP = """
--help
--max-input 1KiB verify plan.json
--max-input 1KiB --help
frobnicate
plan
plan pipelin
plan pipeline
plan pipeline p.json --pp 2 --microbatches nine
plan pipeline p.json --pp 2 --microbatches 4 --json -o p.json
plan pipeline missing.json --pp 2 --microbatches 4
plan pipeline missing.json --pp 2 --microbatches 4 --json
plan pipeline c.yaml --pp 2 --microbatches 4 --json
plan pipeline p.json --pp 9 --microbatches 4
plan pipeline p.json --pp 2 --microbatches 4 -o no/out.json
plan pipeline p.json --pp 2 --microbatches 4 --cluster o.yaml
simulate --json
""" + "".join(
    f"{verb} --help\n"
    for verb in (
        *("simulate", "run", "detect", "monitor", "probe", "coordinate", "replay", "sweep", "reproduce", "verify"),
        *("explain", "viz", "diff", "export", "import", "schema", "quickstart", "plan", "profile", "trace"),
        *(f"plan {one}" for one in ("pipeline", "adaptra", "slipstream", "joint", "batch", "templates", "oobleck")),
        *(f"plan {one}" for one in ("reconfigure", "topology", "mitigate")),
        *(f"profile {one}" for one in ("model", "links", "refine", "compare")),
        *(f"trace {one}" for one in ("convert", "generate", "show")),
    )
)

GROUPS = {
    group: tuple(lines.strip().split("\n"))
    for group, lines in (("planning", _PLANNING), ("running", _RUNNING), ("looking", _LOOKING), ("help", _HELP))
}
