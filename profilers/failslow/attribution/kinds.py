"""The kinds of operations that a table may have, by what they wait for, and what is usual of them."""

FORWARD = "forward-compute"
BACKWARD = "backward-compute"
COMPUTE = (FORWARD, BACKWARD)

FORWARD_SEND, FORWARD_RECV = "forward-send", "forward-recv"
BACKWARD_SEND, BACKWARD_RECV = "backward-send", "backward-recv"
MESSAGES = (FORWARD_SEND, FORWARD_RECV, BACKWARD_SEND, BACKWARD_RECV)

PARAMETERS = "params-all-gather"
GRADIENTS = "grads-reduce-scatter"
SEPARATE_GRADIENTS = "separate-grads-all-reduce"
EMBEDDING = "embedding-grads-all-reduce"
LAYERNORM = "layernorm-grads-all-reduce"
CLIP = "optimizer-clip-main-grad"
OPTIMIZER = "optimizer"
COLLECTION = "gc"

# Data-parallel peers start these together; a stage's own (but for `CLIP`, in which all stages meet).
AMONG_PEERS = (PARAMETERS, GRADIENTS, SEPARATE_GRADIENTS, CLIP)
# They wait for somebody, so only the time from the last one's start on is theirs.
WAITING = (*MESSAGES, *AMONG_PEERS, EMBEDDING)
# Communication, of which the median is usual: a few waits are very long. Of computation, the mean is.
COMMUNICATION = (*WAITING, LAYERNORM)

KNOWN = (*COMPUTE, *COMMUNICATION, OPTIMIZER, COLLECTION)
