-- What tells a policy that remembers from one that explores, and a sweep's short cells from its long ones.
-- Rows from before hold both, in `extra` and in `parameters`. So do rows of an archive that was written before; it is
-- read back after this, and the views look there, too.

alter table evaluations add column scenes_trained_on bigint;   -- of the scenes flown, those its weights have known
update evaluations set scenes_trained_on = try_cast(json_extract_string(extra, '$.scenes_trained_on') as bigint)
where extra is not null;

alter table evaluations add column confirms boolean;           -- flown from other starts to confirm a challenger's win

alter table benchmarks add column profile varchar;             -- a sweep's profile, and what was asked for beside it
update benchmarks set profile = json_extract_string(parameters, '$.profile') where parameters is not null;
