-- What the champion cost, with all that it descends from: each training once, and their sum.
with versions as (
    select min(depth) as depth, min(ancestor) as version, run_id
    from model_lineage
    where version = (select version from aliases where alias = 'champion') and run_id is not null
    group by run_id
),
costs as (
    select depth, versions.version, runs.run_id, algorithm, runs.step as decisions, wall_time_seconds / 60 as minutes,
           cpu_seconds / 60 as cpu_minutes, device
    from versions join runs using (run_id)
)
select version, run_id, algorithm, decisions, round(minutes, 1) as minutes, round(cpu_minutes, 1) as cpu_minutes, device
from (
    select * from costs
    union all
    -- A sum that leaves out a training that told nothing would look like a cost.
    select null, 'together', null, null, sum(decisions), sum(minutes),
           case when count(cpu_minutes) = count(*) then sum(cpu_minutes) end, null
    from costs having count(*) > 0
) order by depth nulls last, version;
