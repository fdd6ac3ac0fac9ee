-- Cost of a champion with all trainings until its promotion: its lineage, refused challengers, trials, failures.
-- version: a version of the registry; by default the champion
with wanted as (
    select coalesce(getvariable('version'), (select version from aliases where alias = 'champion')) as version
),
moment as (
    select coalesce((select min(since) from champion_reigns join wanted using (version)), now()::timestamp) as moment
),
parts as (
    select runs.*, case
        when run_id in (
            select run_id from model_lineage join wanted using (version) where run_id is not null
        ) then '1 lineage of the champion'
        when run_id in (select run_id from trials where run_id is not null) then '3 trials of studies'
        when run_id in (
            select models.run_id from models join promotions using (version)
            where not promoted and models.run_id is not null
        ) then '2 refused challengers'
        when status <> 'finished' then '4 ended early'
        else '5 other trainings'
    end as part
    from runs, moment where coalesce(started_at, recorded_at) <= moment
)
select coalesce(part[3:], 'together') as part, count(*) as runs, sum(step)::bigint as decisions,
       round(sum(cpu_seconds), 1) as cpu_seconds,
       -- A training holds its device while it works.
       round(coalesce(sum(wall_time_seconds) filter (device like 'cuda%'), 0), 1) as gpu_seconds,
       round(sum(wall_time_seconds), 1) as wall_time_seconds,
       count(*) filter (cpu_seconds is null) as runs_without_cpu_seconds
from parts group by grouping sets ((part), ()) order by grouping(parts.part), parts.part;
