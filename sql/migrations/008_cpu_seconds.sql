-- What a training cost: processor time over all its starts, work that was lost with a kill included where a checkpoint or
-- an end has told of it. Runs of before have none.

alter table runs add column cpu_seconds double;
alter table checkpoints add column cpu_seconds double;
