-- What every training took: decisions, minutes at work (pauses left out), decisions a second, on which machine.
with made as (
    select run_id, string_agg(version, ', ' order by created_at) as versions from models group by run_id
)
select runs.run_id, algorithm, core, runs.step as decisions, round(wall_time_seconds / 60, 1) as minutes,
       round(runs.step / nullif(wall_time_seconds, 0)) as decisions_per_second, made.versions, runs.hardware
from runs left join made using (run_id)
order by runs.recorded_at desc limit 50;
