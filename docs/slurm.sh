#!/bin/bash
# A resilient run under SLURM: the coordinator on the batch host, and one srun task per worker of plan.json, or per GPU of each.
#   sbatch --nodes=3 --ntasks=6 docs/slurm.sh            (live workers of the plan, times their GPUs)
# The folder of submission must be shared by all nodes: plan, secret, log and checkpoints are there.
#SBATCH --job-name=rtk
#SBATCH --no-kill               # a lost node does not end the job: rtk goes on without its workers
#SBATCH --signal=TERM@60        # a minute before the time is up: finish the iteration, save, leave
#SBATCH --requeue
#SBATCH --open-mode=append

model=${MODEL:-gpt-tiny} iterations=${ITERATIONS:-1000} port=${PORT:-29400}
# An address, not a name: some hosts give their own name a loopback address.
here=$(hostname -I | awk '{print $1}')
attempt=${SLURM_RESTART_COUNT:-0}
mkdir -p rtk-job

# After a requeue all workers are new: a new log, and the state from the newest whole checkpoint.
resume=()
if compgen -G 'rtk-job/checkpoints/step-????????/checkpoint.json' >/dev/null; then
    resume=(--resume rtk-job/checkpoints)
fi

# Started again when it dies, it takes the workers back from its log. Codes up to 128 are its own: the job is over.
coordinate() {
    while :; do
        rtk coordinate plan.json --iterations "$iterations" --listen "$here:$port" --secret-file rtk-job/secret \
            --log "rtk-job/log.$attempt" --checkpoint rtk-job/checkpoints --checkpoint-every 100 "${resume[@]}" \
            --metrics rtk-job/metrics.jsonl
        code=$?
        ((code <= 128)) && return "$code"
    done
}
coordinate &
coordinator=$!
until [[ -s rtk-job/secret ]] || ! kill -0 "$coordinator" 2>/dev/null; do sleep 0.2; done

# A worker that was killed is started again and joins. SIGTERM reaches the shell, and with cgroups nobody else (Slurm's
# proctrack/cgroup: "only signal slurm tasks unless signal is SIGKILL"): the shell passes it on, and starts no other worker.
export MODEL=$model COORDINATOR=$here:$port
# shellcheck disable=SC2016  # these are for the shells of the tasks
srun --no-kill --kill-on-bad-exit=0 --wait=0 bash -c '
    trap "told=1; kill -TERM \$worker 2>/dev/null" TERM
    until [[ $told ]]; do
        RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID \
            rtk run plan.json --model "$MODEL" --coordinator "$COORDINATOR" --secret-file rtk-job/secret &
        worker=$!
        [[ $told ]] && { sleep 1; kill -TERM $worker; }  # told before there was anybody to tell
        wait $worker
        code=$?
        [[ $told ]] && { wait $worker; code=$?; }
        ((code <= 128)) && exit "$code"
        sleep 1
    done' &

wait "$coordinator"
code=$?
# 5: training could not go on, or the time was up; what was saved is resumed.
if ((code == 5 && attempt < 20)) && [[ -n $SLURM_JOB_ID ]]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
