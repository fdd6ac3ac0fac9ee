-- Cost of the champion and its ancestors: each training once, and their sum.
with trainings as (
    select min(depth) as depth, min(ancestor) as version, run_id
    from model_lineage
    where version = (select version from aliases where alias = 'champion')
    group by run_id, case when run_id is null then ancestor end
),
costs as (
    select depth, version, run_id, algorithm, runs.step as decisions, wall_time_seconds / 60 as minutes,
           cpu_seconds / 60 as cpu_minutes, device
    from trainings left join runs using (run_id)
)
select version, run_id, algorithm, decisions, round(minutes, 1) as minutes, round(cpu_minutes, 1) as cpu_minutes, device
from (
    select * from costs
    union all
    -- A sum without the trainings that recorded no time, or are unknown here, would look like a cost.
    select null, 'together', null, null, case when count(decisions) = count(*) then sum(decisions) end,
           case when count(minutes) = count(*) then sum(minutes) end,
           case when count(cpu_minutes) = count(*) then sum(cpu_minutes) end, null
    from costs having count(*) > 0
) order by depth nulls last, version;
