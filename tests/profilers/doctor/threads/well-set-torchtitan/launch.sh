#!/bin/bash
torchrun --nproc_per_node=8 --rdzv_backend c10d --rdzv_endpoint="localhost:0" --local-ranks-filter 0 --role rank --tee 3 \
    -m torchtitan.train --job.config_file train.toml --fault_tolerance.replica_id=$REPLICA
