"""The verl engine: Ray, vLLM for the rollouts, FSDP2 or Megatron for the update; a CPU mode to test it.

    start.py     checks what can be checked in seconds, prepares the environment, starts the engine
    compose.py   RunConfig -> verl's config
    engine.py    plans in, groups out; owns Ray and everything that runs in it
    trainer.py   verl's trainer, where prompts have unequal numbers of rollouts
    reward.py    our rewards as verl's reward function
    plugin.py    what every process that imports verl loads: sockets of the run's own, and cpu.py in CPU mode

Nothing here imports verl before start.py has set the environment that verl reads while it is imported.
"""
