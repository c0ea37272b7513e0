"""The owner makes all decisions of one changefeed. It runs in the Spark driver; tasks carry out what it decides.

`Owner` (`owner`) is pure. It is built from cores that are pure as well:

- `pulling.Spans`: which puller pulls which span, how far each is complete; `Quota`: which spans are held back
- `planning.Barrier`: how far anything may be planned; `Planner`: cuts rows into plan entries; `Checkpoint`
- `writing.Writing`: which pipeline task writes which open entry
- `log.state.State`: what the transaction log says; `log.history.apply` makes the next one from a record

`Driver` (`driver`) is the shell around it: one process's run. It loops:

1. What happens comes in through `serving.OwnerService` (reports of pullers, written files) and `planning.Ddls`
   (DDLs). Each is told to the owner, and wakes the loop.
2. `Owner.step` returns the one action to take next, None to wait, or `Stop`: append a plan, publish files, write a DDL
   or a syncpoint, record a checkpoint.
3. `Publication` carries it out, in the order of publication, and appends its record to the transaction log (`log`).
4. `Owner.recorded` takes the state of the log; `Owner.hand_out` gives tasks what may be written now.
5. Beside the loop: `Owner.tend` balances pullers, `serving.Vigilance` finds silent tasks, `reporting` says how it goes.

A run begins in `preparation.prepare`: read the log, hold the upstream's history, claim the next epoch. `sink.claim`
is what it writes to; `closing` and `adoption` act on changefeeds that no driver runs.

To read: `log/records`, `owner`, `planning/planner`, `planning/barrier`, `pulling/spans`, `log/history` and
`log/log`, then `driver`. The rules that all of them keep are in docs/design/rules.md.
"""
