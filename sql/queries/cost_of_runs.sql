-- Cost of every training: decisions, minutes at work (pauses left out), minutes of processors, decisions a second.
with made as (
    select run_id, string_agg(version, ', ' order by created_at) as versions from models group by run_id
)
select runs.run_id, algorithm, core, runs.step as decisions, round(wall_time_seconds / 60, 1) as minutes,
       round(cpu_seconds / 60, 1) as cpu_minutes, round(runs.step / nullif(wall_time_seconds, 0)) as decisions_per_second,
       made.versions, device, runs.hardware
from runs left join made using (run_id)
order by runs.recorded_at desc limit 50;
