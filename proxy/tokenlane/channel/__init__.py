"""The channel between the supervisor and one worker: tagged messages over a socketpair.

How `tokenlane.control.supervisor` starts a worker (`tokenlane.worker.main`):
- The supervisor runs `python -m tokenlane.worker.main CHANNEL_FD` in a session of its own, so that
  a Ctrl-C at the terminal reaches the supervisor alone, which then tells the workers.
- The first frame is Hello. It names the descriptors of the metrics segment and the load board,
  which the worker inherited with the channel, and the first FleetState.
- The worker loads its tokenizers, listens with SO_REUSEPORT on `settings.server`, and sends
  Ready; or it sends Failed with one sentence for the operator and exits with code 2.
- Afterwards: Fleet, Learned and Cached downwards (Learned is what another worker routed, Cached
  what a replica says of its cache), Reload downwards and a Reloaded for each upwards, Learned,
  Kept, Suspect, Routed, Stalled and Beats upwards, WhoseResponse upwards and a ResponseOf for each
  downwards, Explain downwards and an Explained for each upwards, Drain downwards once. A worker
  that got Drain stops listening, finishes what is in flight within `drain_deadline_s`, and exits 0.

Invariants:
- A message is whole or absent. Frames: uint32 little-endian length, then msgpack.
- Control messages are never dropped. Learned and Routed ones and what is told of stalls are
  (`offer`), when the other side does not keep up: they are hints, and a backlog of hints is memory.
  Kept and WhoseResponse say whose a response is: they wait behind these, and have a far limit.
- A worker outlives its channel: it keeps serving with what it knows.
"""
