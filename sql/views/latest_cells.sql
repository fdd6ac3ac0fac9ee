-- The latest figure of every repeat of every cell, by profile and hardware; what an earlier run of the same cell measured
-- is history. A quick cell and a full one are two cells: one learns for longer.
create or replace view latest_cells as
select * replace (profile_of(profile, parameters) as profile)
from benchmarks
qualify row_number() over (
    partition by benchmark, profile_of(profile, parameters), cell, repeat, seed, name, hardware order by recorded_at desc
) = 1;
