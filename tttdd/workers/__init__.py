"""Programs that run in worker processes: the only home of torch, megatron-core and transformers."""
