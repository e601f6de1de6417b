"""The verl engine: Ray, vLLM for the rollouts, FSDP2 or Megatron for the update."""
