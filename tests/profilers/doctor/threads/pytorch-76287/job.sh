#!/bin/bash
#SBATCH --nodes=40
#SBATCH --ntasks-per-node=1

srun --jobid $SLURM_JOB_ID bash -c "$LAUNCHER --node_rank \$SLURM_PROCID $CMD" 2>&1 | tee -a $LOGS_PATH/main_log.txt
