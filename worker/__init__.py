"""The worker: launches runs, supervises them and ingests their events. `python -m worker` starts one.

The API imports `worker.queue`; nothing else of this room is anybody else's business. No torch in these processes.
"""
