"""Where commands and options stand on help pages, and what stands for their values: data only.

An option means the same on all pages, so it stands under the same heading on all of them; where it does not, its key
begins with the command's name.
"""

COMMANDS = {
    "Start": ("quickstart", "init", "config"),
    "Plan": ("profile", "plan", "explain", "verify"),
    "Run": ("simulate", "run", "coordinate", "checkpoint"),
    "Watch": ("monitor", "detect", "goodput", "bubble", "doctor", "probe"),
    "Decide": ("trace", "replay", "sweep", "reproduce"),
    "Files": ("viz", "diff", "export", "import", "schema"),
    "Help": ("help", "completion"),
}

ENOUGH = 8  # options that need no headings

GENERAL = "General"
PANELS = {
    "Job": (
        "--pp", "--dp", "--microbatches", "--schedule", "--technique", "--tensor-parallel", "--placement", "--chunks",
        "--iterations", "--trace", "--policies", "--nodes", "--global-batch", "--from", "--times", "--days", "--to",
        "--memory-limit", "replay --profile", "import --profile", "--fault-tolerance", "--largest", "--multiple-of",
        "--objective", "--at-least", "--at-most", "plan oobleck --microbatch-size", "--jitter", "--costs", "--left",
        "--revert-cost", "--overlap", "--batch", "--first", "--recompute", "--shard-optimizer", "--holders",
        "--side-by-side", "plan best --microbatch-size", "export --microbatch-size", "--ahead", "--yes-unsharded",
    ),
    "Model": ("--cut", "--dtype", "--checkpointing", "--tp", "profile model --microbatch-size",
              "profile model --sequence-length", "plan best --sequence-length"),
    "Training": (
        "--model", "--microbatch-size", "--sequence-length", "--precision", "--weights", "--random-weights",
        "--threads", "--paced", "--transport", "--log-memory", "--script",
    ),
    "Data": ("--data", "--data-dtype", "--tokenizer", "--eval-data", "--eval-every", "--eval-microbatches"),
    "Optimizer": ("--optimizer", "--lr", "--betas", "--weight-decay", "--decay-all", "--clip-norm", "--lr-schedule",
                  "--lr-steps", "--warmup", "--min-lr-ratio"),
    "Machines": (
        "--cluster", "--overlay", "--gpus-per-node", "--gpu", "--link-delay", "--slow", "--slow-link", "--listen",
        "profile model --cluster", "profile model --gpu", "--coordinator", "--worker", "--interface", "--secret-file",
        "--standby", "--patience", "--log", "--min-workers", "--join-wait",
    ),
    "Measuring": ("--at-once", "--repeats", "profile model --threads", "--sizes", "--repeat", "--gemm", "--pairs",
                  "--processes", "--together", "profile model --overlap"),
    "Computing instead of measuring": ("--analytic", "profile model --gpu", "--efficiency", "--calibrate",
                                       "--attention", "--dropout", "--sequence-parallel", "--gradients", "--sustained",
                                       "--kernel-gap", "--hidden-sums", "profile model --cluster"),
    "Failures": ("--failed", "--failures", "--max-failures", "--failure-unit", "--inject", "--cost", "--join",
                 "--pays-within"),
    "Resilience": (
        "--policy", "--atlas", "--normalize-within", "--mitigate", "--host-memory", "--heartbeat-limit",
        "--stall-limit", "--tp-across", "--lower-degree", "--regroup", "--checkpoint", "--checkpoint-every", "--resume",
    ),
    "Failing nodes": ("--mtbf", "--repair", "--distribution", "--shape", "--repair-distribution", "--repair-sigma",
                      "--rack-size", "--rack-mtbf", "--rack-repair", "trace generate --gpus-per-node", "--gpu-mtbf",
                      "--gpu-repair"),
    "Slow nodes and links": ("--slow-every", "--slow-lasts", "--slow-factor", "--slow-link-every", "--slow-link-lasts",
                             "--slow-link-delay"),
    "Reading the trace": ("--trace-format", "--leaving", "--slow-faults", "--iteration-time", "--link-time", "--until",
                          "replay --nodes", "trace convert --nodes", "trace show --nodes", "replay --cost"),
    "Part to draw": ("viz --pipelines", "viz --workers", "viz --from", "viz --until", "viz --iterations"),
    "Reading the logs": ("detect --format", "--follow", "--mode", "--shortest", "goodput --format", "--pattern",
                         "goodput --gpus", "--sacct", "--kubernetes", "--timezone"),
    "Settings": ("--env", "--here", "--torchrun"),
    "What no setting says": ("doctor --gpus", "doctor --iteration-time", "doctor --checkpoint-every", "--save-time",
                             "--restart-time", "doctor --mtbf"),
    "Solver": ("--solver", "--time-limit", "--require-optimal", "--jobs", "--seed", "--executor"),
    "Output": ("goodput --trace", "--output", "--timeline", "--resumption", "--metrics", "--log-to", "--page", "--html",
               "--json", "--terminal", "--plotly", "--md", "--github", "--exit-code", "--fail-if", "--tolerance",
               "--markdown", "--into", "--shard-size", "--source", "--chart"),
    "Expert": ("--profile", "--plan"),
    GENERAL: ("--quiet", "--debug", "--help", "--force", "--yes"),
}  # fmt: skip

METAVARS = {
    "--model": "MODEL",
    "--gpu": "GPU",
    "--data": "FILE",
    "--data-dtype": "TYPE",
    "--tokenizer": "FOLDER",
    "--eval-data": "FILE",
    "--weights": "FOLDER",
    "--output": "FILE",
    "--timeline": "FILE",
    "--resumption": "FILE",
    "--metrics": "FILE",
    "--profile": "PROFILE",
    "--plan": "PLAN",
    "--trace": "TRACE",
    "--inject": "TRACE",
    "--html": "FILE",
    "--chart": "FILE",
    "--markdown": "FILE",
    "--atlas": "FOLDER",
    "--checkpoint": "FOLDER",
    "--resume": "FOLDER",
    "--secret-file": "FILE",
    "--log": "FILE",
    "--coordinator": "HOST:PORT",
    "--listen": "HOST:PORT",
    "--interface": "ADDRESS",
    "--worker": "k/i",
    "--cut": "NAMES",
    "--tp": "N[,N…]",
    "--mode": "robust|paper",
    "--sacct": "FILE",
    "--kubernetes": "FILE",
    "--env": "FILE",
    "--torchrun": "LINE",
    "--leaving": "random|newest",
}


def panel_of(path: str, option: str) -> str:
    """The heading under which an option stands on a command's page.

    Args:
        path: the command, such as `plan pipeline`.
        option: its long name.
    """
    for key in (f"{path} {option}", option):
        for title, options in PANELS.items():
            if key in options:
                return title
    return GENERAL
