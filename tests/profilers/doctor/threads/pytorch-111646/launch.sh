torchrun --nnodes=1:4 --rdzv-backend=c10d --rdzv-endpoint=localhost:9999 --rdzv-conf=last_call_timeout=10 \
    --no-python bash -c "echo start; sleep 600; echo done"
